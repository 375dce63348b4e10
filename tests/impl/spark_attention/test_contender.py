"""What the contenders say of a case and of themselves."""

from __future__ import annotations

import pytest
import torch

from harness.contender import Target, discover
from harness.ops import OPS
from harness.verify import Gate, poisoned_call
from impl.spark_attention import reference
from tests.impl.spark_attention.backends import emulated

OP = OPS["attention"]
CPU = Target("cpu", "a CPU")
H200 = Target("cuda", "NVIDIA H200", (9, 0))
V100 = Target("cuda", "Tesla V100", (7, 0))


def contender(name):
    return discover()["attention"][name]


def case(**fields):
    return OP.Params(**{"batch": 1, "num_heads": 2, "seqlen_q": 70, "seqlen_k": 70, "head_dim": 64, **fields})


@pytest.mark.parametrize(
    ("name", "fields", "target", "reason"),
    [
        ("spark_attention", {}, H200, None),
        ("spark_attention", {"dtype": "bfloat16"}, H200, None),
        ("spark_attention", {"dtype": "bfloat16"}, V100, "bfloat16 needs compute capability 8.0"),
        ("spark_attention", {"dtype": "float32"}, CPU, "takes float16 or bfloat16"),
        ("spark_attention", {"head_dim": 256}, H200, "head_dim is at most 128"),
        ("spark_attention", {"direction": "backward"}, H200, "no backward kernel yet"),
        ("spark_attention", {"direction": "backward"}, CPU, None),
        ("spark_attention_sm70", {"dtype": "bfloat16"}, H200, "takes float16 only"),
        ("spark_attention_fp16acc", {"direction": "backward"}, CPU, "is a forward"),
    ],
)
def test_refusals(name, fields, target, reason):
    refusal = contender(name).refusal(case(**fields), target)
    assert (refusal is None) if reason is None else refusal[0] == "unsupported" and reason in refusal[1]


def prepare_and_check(name, params, target):
    """The contender's Prepared, its outputs held to the gate."""
    inputs = OP.inputs(params, target.device)
    prepared = contender(name).prepare(params, inputs, target)
    verdict = Gate(OP, params, inputs).check(poisoned_call(prepared.run))
    assert verdict.passed, verdict.reason
    return prepared


@emulated
@pytest.mark.parametrize("fields", [{"causal": True}, {"head_dim": 111, "seqlen_q": 33, "seqlen_k": 65}])
@pytest.mark.parametrize(
    ("name", "arch"),
    [("spark_attention", "sm_80"), ("spark_attention_sm70", "sm_70"), ("spark_attention_fp16acc", "sm_70")],
)
def test_on_a_cpu_the_kernel_is_emulated(name, arch, fields, monkeypatch):
    monkeypatch.setattr(reference, "attention_forward", lambda *_, **__: pytest.fail("the reference ran"))
    prepared = prepare_and_check(name, case(seed=3, **fields), CPU)
    assert (prepared.backend, prepared.kernel_arch, prepared.built_arch) == ("emulated", arch, "cpu")
    assert f"_{arch.replace('_', '')}_" in prepared.tuning["kernel"]
    assert prepared.kernel_hash
    assert "time" in prepared.no_times


@pytest.mark.parametrize("name", ["spark_attention", "spark_attention_sm70", "spark_attention_fp16acc"])
def test_without_a_compiler_the_reference_runs_and_says_why(name, without_compiler):
    prepared = prepare_and_check(name, case(causal=True, seqlen_q=200), CPU)
    assert (prepared.backend, prepared.kernel_arch, prepared.kernel_hash) == ("reference", None, None)
    assert (prepared.tuning, prepared.no_times) == ({}, None)
    assert "reference" in prepared.note
    assert "install g++" in prepared.note


def test_the_backward_is_the_reference():
    prepared = prepare_and_check("spark_attention", case(direction="backward", causal=True), CPU)
    assert (prepared.backend, prepared.kernel_arch, prepared.no_times) == ("reference", None, None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "arch"),
    [("spark_attention", None), ("spark_attention_sm70", "sm_70"), ("spark_attention_fp16acc", "sm_70")],
)
def test_on_a_gpu_a_kernel_runs(name, arch):
    capability = torch.cuda.get_device_capability()
    target = Target("cuda", torch.cuda.get_device_name(), capability)
    prepared = prepare_and_check(name, case(causal=True), target)
    assert prepared.backend == "kernel"
    assert prepared.kernel_arch == (arch or ("sm_70" if capability < (8, 0) else "sm_80"))
    assert (prepared.no_times is None) == (prepared.kernel_arch == "sm_80" or capability == (7, 0))
    assert prepared.kernel_hash
