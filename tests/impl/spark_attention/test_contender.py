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
        ("spark_attention", {"direction": "backward"}, H200, None),
        ("spark_attention", {"direction": "backward"}, CPU, None),
        ("spark_attention_sm70", {"dtype": "bfloat16"}, H200, "takes float16 only"),
        ("spark_attention_sm80", {"dtype": "bfloat16"}, H200, None),
        ("spark_attention_sm80", {}, V100, "need compute capability 8.0"),
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
    ("name", "arch", "direction"),
    [
        ("spark_attention", "sm_80", "forward"),
        ("spark_attention", "sm_80", "backward"),
        ("spark_attention_sm70", "sm_70", "forward"),
        ("spark_attention_sm70", "sm_70", "backward"),
        ("spark_attention_sm80", "sm_80", "forward"),
        ("spark_attention_fp16acc", "sm_70", "forward"),
    ],
)
def test_on_a_cpu_the_kernels_are_emulated(name, arch, direction, fields, monkeypatch):
    for function in ("attention_forward", "attention_backward"):
        monkeypatch.setattr(reference, function, lambda *_, **__: pytest.fail("the reference ran"))
    prepared = prepare_and_check(name, case(seed=3, direction=direction, **fields), CPU)
    assert (prepared.backend, prepared.kernel_arch, prepared.built_arch) == ("emulated", arch, "cpu")
    kernels = prepared.tuning["kernel"].split(" + ")
    assert len(kernels) == (1 if direction == "forward" else 2)
    assert all(direction in kernel and f"_{arch.replace('_', '')}_" in kernel for kernel in kernels)
    assert prepared.kernel_hash
    assert "time" in prepared.no_times


@pytest.mark.parametrize(
    ("name", "direction"),
    [("spark_attention", "backward"), ("spark_attention_sm70", "forward"), ("spark_attention_fp16acc", "forward")],
)
def test_without_a_compiler_the_reference_runs_and_says_why(name, direction, without_compiler):
    prepared = prepare_and_check(name, case(causal=True, seqlen_q=200, direction=direction), CPU)
    assert (prepared.backend, prepared.kernel_arch, prepared.kernel_hash) == ("reference", None, None)
    assert (prepared.tuning, prepared.no_times) == ({}, None)
    assert "reference" in prepared.note
    assert "install g++" in prepared.note


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["tiny_encoder", "tiny_decoder"])
def test_a_training_step_on_a_gpu_names_the_kernels_of_both_directions(model):
    properties = torch.cuda.get_device_properties()
    gpu = Target("cuda", properties.name, (properties.major, properties.minor))
    op = OPS["training_step"]
    params = op.Params(model=model, batch=2, seqlen=70)
    prepared = discover()["training_step"]["spark_attention"].prepare(params, op.inputs(params, "cuda"), gpu)
    assert prepared.backend == "kernel"
    assert prepared.kernel_hash
    names = prepared.tuning["kernel"].split(" + ")
    assert "forward" in names[0]
    assert any("backward" in name for name in names[1:])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "arch", "direction"),
    [
        ("spark_attention", None, "forward"),
        ("spark_attention", None, "backward"),
        ("spark_attention_sm70", "sm_70", "backward"),
        ("spark_attention_fp16acc", "sm_70", "forward"),
    ],
)
def test_on_a_gpu_a_kernel_runs(name, arch, direction):
    capability = torch.cuda.get_device_capability()
    target = Target("cuda", torch.cuda.get_device_name(), capability)
    prepared = prepare_and_check(name, case(causal=True, direction=direction), target)
    assert prepared.backend == "kernel"
    native = "sm_70" if capability < (8, 0) else "sm_90a" if capability == (9, 0) else "sm_80"
    assert prepared.kernel_arch == (arch or native)
    assert f"_{prepared.kernel_arch.replace('_', '')}_" in prepared.tuning["kernel"]
    assert (prepared.no_times is None) == (prepared.kernel_arch != "sm_70" or capability == (7, 0))
    assert prepared.kernel_hash
