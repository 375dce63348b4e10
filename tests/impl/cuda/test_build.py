"""Source to cubin: resources, errors, and what the cache tells apart."""

from __future__ import annotations

import csv
import dataclasses
import random
import threading
from pathlib import Path

import pytest

from harness.paths import ROOT
from impl.cuda import build as build_module
from impl.cuda.build import BuildError, Cubin, Kernel, Resources, build, cache_folder, source_closure, source_hash
from impl.cuda.report import all_kernels, check_budget, report_row, target_architectures

ARCHITECTURES = ["sm_70", "sm_80", "sm_90a"]

SOURCE = """
#include "scale.cuh"
extern "C" __global__ void __launch_bounds__(128) scale(float* x, int count) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < count) x[threadIdx.x] = tile[127 - threadIdx.x] * FACTOR;
}
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "scale.cuh").write_text("#define FACTOR (2.0f * SIGN)\n")
    file = tmp_path / "scale.cu"
    file.write_text(SOURCE)
    return Kernel("scale", file, "scale", "sm_70", (("SIGN", 1),), 128, 0, max_registers=32, min_blocks_per_sm=8)


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90a"])
def test_resources_come_from_ptxas(kernel, arch):
    cubin = build(kernel, arch)
    assert cubin.code.startswith(b"\x7fELF")
    assert 4 <= cubin.resources.registers <= 32
    assert cubin.resources.static_shared_bytes == 256 * 4
    assert (cubin.resources.spill_store_bytes, cubin.resources.stack_bytes) == (0, 0)


def test_second_build_is_read_from_the_cache(kernel, monkeypatch):
    first = build(kernel, "sm_80")
    monkeypatch.setattr(build_module, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build(kernel, "sm_80") == first
    assert [entry.name for entry in cache_folder().iterdir()] == [first.hash]


def test_hash_covers_source_headers_macros_and_architecture(kernel):
    hashes = {source_hash(kernel, "sm_80"), source_hash(kernel, "sm_70")}
    hashes.add(source_hash(dataclasses.replace(kernel, macros=(("SIGN", -1),)), "sm_80"))
    header = kernel.file.with_name("scale.cuh")
    header.write_text(header.read_text() + "// another text\n")
    hashes.add(source_hash(kernel, "sm_80"))
    kernel.file.write_text(SOURCE.replace("127", "126"))
    hashes.add(source_hash(kernel, "sm_80"))
    assert len(hashes) == 5


def test_headers_are_followed_through_headers(kernel):
    header = kernel.file.with_name("scale.cuh")
    header.write_text('#include "math.cuh"\n#include "sign.cuh"\n')
    sign = kernel.file.with_name("sign.cuh")
    sign.write_text("#define FACTOR 1\n")
    assert set(source_closure(kernel.file)) == {kernel.file, header, sign, build_module.INCLUDE / "math.cuh"}


def test_compiler_error_is_shown_with_its_line(kernel):
    kernel.file.write_text(SOURCE.replace("* FACTOR", "* MISSING"))
    with pytest.raises(BuildError, match=r"scale.cu\(7\): error: identifier \"MISSING\" is undefined"):
        build(kernel, "sm_80")
    assert not cache_folder().exists()


def test_unknown_architecture_names_those_that_are_known(kernel):
    with pytest.raises(BuildError, match=r"this NVRTC targets \[.*80.*\], not sm_20"):
        build(kernel, "sm_20")


def test_builds_at_the_same_time_leave_one_entry(kernel):
    cubins = []
    threads = [threading.Thread(target=lambda: cubins.append(build(kernel, "sm_80"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({cubin.code for cubin in cubins}) == 1
    assert [entry.name for entry in cache_folder().iterdir()] == [cubins[0].hash]


# What NVRTC made of the kernels, by the hash of all that this depends on. A kernel that has been edited since, or is
# compiled by another NVRTC, is not in there. Made by `voltabench build`, with config/h200.yaml and config/v100.yaml.
REPORTS = [ROOT / "results/h200/resources.csv", Path(__file__).with_name("resources_sm70.csv")]


@pytest.fixture(scope="module")
def reported():
    return {row["hash"]: row for report in REPORTS for row in csv.DictReader(report.read_text().splitlines())}


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.name)
def test_every_kernel_keeps_its_budget_wherever_it_runs(kernel, reported):
    for arch in target_architectures(kernel, ARCHITECTURES):
        made_of = source_hash(kernel, arch)
        if row := reported.get(made_of):
            static = int(row["shared_bytes"]) - kernel.dynamic_shared_bytes
            cubin = Cubin(b"", made_of, Resources(int(row["registers"]), int(row["spill_bytes"]), 0, static, 0))
        else:
            cubin = build(kernel, arch)
        check_budget(kernel, cubin, arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_reports_are_what_nvrtc_makes(arch, reported, tmp_path, monkeypatch):
    """Of other kernels in each run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = [k for k in all_kernels() if k.arch == arch and source_hash(k, arch) in reported]
    for kernel in random.sample(kept, min(2, len(kept))):
        cubin = build(kernel, arch)
        assert {name: str(value) for name, value in report_row(kernel, cubin, arch).items()} == reported[cubin.hash]
