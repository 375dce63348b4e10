"""The contender: what it prepares, what it says it cannot run, and what stays out of the timed call."""

from __future__ import annotations

import pytest
import torch

from harness.contender import Target, discover
from harness.ops.spmm import SpMM
from impl.cuda import emulator
from impl.flash_llm import reference
from impl.flash_llm.formats import SparseMatrix
from tests.impl.flash_llm.matrices import assert_is_product

CPU = Target("cpu", "CPU")


@pytest.fixture
def contender(kind):
    return discover()["spmm"][f"flash_llm_{kind.name}"]


def make_params(**changes):
    return SpMM.Params(**{"m": 300, "n": 9, "k": 200, "sparsity": 0.7, **changes})


def prepare_and_check(contender, monkeypatch, **changes):
    """The contender's Prepared, its product held to the bound; what `run` does is multiply, no more."""
    params = make_params(**changes)
    inputs = SpMM().inputs(params, "cpu")
    prepared = contender.prepare(params, inputs, CPU)
    with monkeypatch.context() as patch:
        for step in ("_from_strips", "of_parts", "__post_init__"):
            patch.setattr(SparseMatrix, step, lambda *_: pytest.fail("converted within the timed call"))
        assert_is_product(prepared.run()["y"], inputs["w"], inputs["x"])
    return prepared


@pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
@pytest.mark.parametrize(("n", "tile_n"), [(3, 8), (9, 16), (64, 64)])
def test_on_a_cpu_the_kernel_is_emulated(contender, n, tile_n, monkeypatch):
    monkeypatch.setattr(reference, "spmm", lambda *_: pytest.fail("the reference ran"))
    prepared = prepare_and_check(contender, monkeypatch, n=n)
    assert (prepared.backend, prepared.kernel_arch, prepared.built_arch) == ("emulated", "sm_80", "cpu")
    assert (prepared.tuning["split_k"], prepared.tuning["tile_n"]) == (1, tile_n)
    assert prepared.kernel_hash
    assert "time" in prepared.no_times


def test_without_a_compiler_the_reference_runs_and_says_why(contender, monkeypatch, without_compiler):
    prepared = prepare_and_check(contender, monkeypatch)
    assert (prepared.backend, prepared.kernel_arch, prepared.kernel_hash) == ("reference", None, None)
    assert (prepared.tuning, prepared.no_times) == ({"split_k": 1, "format_by_rule": "two_of_four"}, None)
    assert "reference" in prepared.note
    assert "install g++" in prepared.note


def test_bytes_of_the_format_are_reported(contender, kind):
    params = make_params(m=256, k=128, n=8)
    inputs = SpMM().inputs(params, "cpu")
    prepared = contender.prepare(params, inputs, CPU)
    assert prepared.format_bytes == kind.from_dense(inputs["w"]).nbytes
    assert prepared.bytes_floor == prepared.format_bytes + 2 * 128 * 8 + 2 * 256 * 8


def test_the_weight_of_the_case_before_is_not_converted_again(contender, monkeypatch):
    seconds = prepare_and_check(contender, monkeypatch, n=8).conversion_s
    with monkeypatch.context() as patch:
        patch.setattr(SparseMatrix, "_from_strips", lambda *_: pytest.fail("converted again"))
        assert prepare_and_check(contender, monkeypatch, n=16).conversion_s == seconds
    assert prepare_and_check(contender, monkeypatch, n=16, seed=5).conversion_s != seconds
    assert prepare_and_check(contender, monkeypatch, n=16, m=299).conversion_s != seconds


@pytest.mark.parametrize(
    ("sparsity", "rule"), [(0.5, "bitmap"), (0.6, "bitmap"), (0.7, "two_of_four"), (0.9, "two_of_four")]
)
def test_what_the_rule_would_choose_is_in_every_row(contender, sparsity, rule, monkeypatch):
    assert prepare_and_check(contender, monkeypatch, sparsity=sparsity).tuning["format_by_rule"] == rule


@pytest.mark.parametrize(
    ("changes", "target", "reason"),
    [
        ({"dtype": "bfloat16"}, CPU, "float16"),
        ({}, Target("cuda", "P100", (6, 0)), "or newer"),
        ({}, Target("cuda", "A100", (8, 0)), None),
        ({}, CPU, None),
    ],
)
def test_what_cannot_run_says_why(contender, changes, target, reason):
    answer = contender.unsupported(make_params(**changes), target)
    assert answer is None if reason is None else reason in answer


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_runs(contender):
    params = make_params(m=1000, k=3000)
    inputs = SpMM().inputs(params, "cuda")
    prepared = contender.prepare(params, inputs, Target("cuda", "GPU", torch.cuda.get_device_capability()))
    assert_is_product(prepared.run()["y"].cpu(), inputs["w"].cpu(), inputs["x"].cpu())
    hopper = contender.name != "flash_llm_tiled_csl" and torch.cuda.get_device_capability() == (9, 0)
    arch = "sm_90a" if hopper else "sm_80"
    assert (prepared.backend, prepared.kernel_arch, prepared.tuning["tile_n"]) == ("kernel", arch, 16)
    assert prepared.tuning["split_k"] > 1
    assert prepared.kernel_hash
