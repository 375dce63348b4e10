"""Occupancy by the published rules, budgets that are enforced, and the report."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from impl.cuda import report
from impl.cuda.build import BuildError, Cubin, Kernel, Resources

KERNEL = Kernel("k", Path("k.cu"), "k", "sm_80", (), 128, 0, max_registers=128, min_blocks_per_sm=2)


def resources(registers=32, spill=0, shared=0):
    return Resources(registers, spill, spill, shared, spill)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limiter"),
    [
        ("sm_70", 128, 24, 0, 16, "warps"),
        ("sm_70", 32, 24, 0, 32, "blocks"),
        ("sm_70", 128, 255, 0, 2, "registers"),
        ("sm_80", 128, 168, 0, 3, "registers"),
        ("sm_80", 96, 255, 0, 2, "registers"),  # 8 warps fit, given in fours: 2 blocks of 3
        ("sm_70", 128, 32, 48 << 10, 2, "shared memory"),
        ("sm_80", 128, 32, 163 << 10, 1, "shared memory"),
        ("sm_80", 128, 32, 82 << 10, 1, "shared memory"),  # 2 x (82 + 1) KB do not fit in 164
        ("sm_90a", 128, 32, 227 << 10, 1, "shared memory"),
        ("sm_90a", 128, 32, 64 << 10, 3, "shared memory"),
        ("sm_70", 128, 32, 97 << 10, 0, "shared memory"),
    ],
)
def test_occupancy(arch, threads, registers, shared, blocks, limiter):
    kernel = dataclasses.replace(KERNEL, threads=threads, dynamic_shared_bytes=shared)
    fit = report.occupancy(kernel, resources(registers), arch)
    assert (fit.blocks_per_sm, fit.limiter) == (blocks, limiter)
    assert fit.fraction == blocks * threads / 2048


@pytest.mark.parametrize(
    ("used", "message"),
    [
        (resources(spill=8), "spills 16 bytes"),
        (resources(registers=130), "uses 130 registers, budget 128"),
        (resources(shared=90 << 10), "1 blocks per SM, budget 2"),
    ],
)
def test_a_broken_budget_is_an_error(used, message):
    with pytest.raises(BuildError, match=message):
        report.check_budget(KERNEL, Cubin(b"", "", used), "sm_80")


@pytest.mark.parametrize("kernel", report.all_kernels(), ids=lambda kernel: kernel.name)
def test_threads_and_shared_memory_leave_room_for_the_blocks_of_the_budget(kernel):
    fit = report.occupancy(kernel, resources(registers=1), kernel.arch)
    assert fit.blocks_per_sm >= kernel.min_blocks_per_sm, fit.limiter


def test_sources_are_built_for_their_own_architecture_and_for_those_that_run_it_natively():
    architectures = ["sm_70", "sm_80", "sm_90a"]
    targets = {
        a: report.target_architectures(dataclasses.replace(KERNEL, arch=a), architectures) for a in architectures
    }
    assert targets == {"sm_70": ["sm_70"], "sm_80": ["sm_80", "sm_90a"], "sm_90a": ["sm_90a"]}


def test_report_has_a_line_for_each_kernel_and_architecture(tmp_path, monkeypatch):
    kernels = report.all_kernels()
    assert {k.name for k in kernels} >= {"spark_attention_forward_sm80_d64_fp16"}
    assert len({k.name for k in kernels}) == len(kernels)
    monkeypatch.setattr(report, "all_kernels", lambda: [k for k in kernels if k.name.endswith("sm80_d64_fp16")])
    report.write_report(["sm_80", "sm_90a"], tmp_path / "build" / "report.csv")
    rows = list(csv.DictReader((tmp_path / "build" / "report.csv").open()))
    assert {(row["kernel"], row["built_arch"]) for row in rows} >= {
        ("spark_attention_forward_sm80_d64_fp16", "sm_80"),
        ("spark_attention_forward_sm80_d64_fp16", "sm_90a"),
    }
    for row in rows:
        assert int(row["registers"]) > 0
        assert int(row["blocks_per_sm"]) >= 1
        assert len(row["hash"]) == 32


def test_nothing_to_build_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "all_kernels", lambda: [dataclasses.replace(KERNEL, arch="sm_90a")])
    with pytest.raises(BuildError, match="no kernel can be built for sm_70"):
        report.write_report(["sm_70"], tmp_path / "report.csv")
