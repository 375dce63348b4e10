"""The op's backward through autograd against float64 through the gate: the reference on a CPU, kernels on a GPU."""

from __future__ import annotations

import pytest
import torch

from harness.ops import OPS
from harness.verify import Gate
from impl.spark_attention.api import spark_attention
from tests.impl.spark_attention.backends import gpu
from tests.impl.spark_attention.distortions import DISTORTIONS

OP = OPS["attention"]


def gradients(inputs, causal, kernel_arch=None):
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    out = spark_attention(*leaves, causal=causal, kernel_arch=kernel_arch)
    return dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, inputs["dout"]), strict=True))


def check(inputs=None, kernel_arch=None, **fields):
    params = OP.Params(**{"direction": "backward", "batch": 1, "num_heads": 2, "head_dim": 64, **fields})
    inputs = inputs or OP.inputs(params, "cpu")
    verdict = Gate(OP, params, inputs).check(gradients(inputs, params.causal, kernel_arch))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [2, 31, 33, 63, 65, 113, 127, 129])
def test_lengths_off_the_tile(seqlen, causal):
    check(seqlen=seqlen, num_heads=3, causal=causal)


def test_a_long_length_off_the_tile():
    check(seqlen=1025, causal=True)


@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (130, 67), (67, 130)])
def test_causal_with_different_lengths(lengths):
    check(seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)


@pytest.mark.parametrize("head_dim", [16, 59, 111, 128])
def test_head_dims(head_dim):
    check(seqlen=70, head_dim=head_dim)


@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 1)])
def test_grouped_heads_sum_their_gradients(heads):
    check(num_heads=heads[0], num_heads_kv=heads[1], seqlen=40, batch=2, causal=True)


def test_bfloat16():
    check(seqlen=100, dtype="bfloat16", causal=True)


def test_one_token():
    params = OP.Params(direction="backward", batch=1, num_heads=1, seqlen=1, head_dim=16)
    inputs = {name: 3 * tensor for name, tensor in OP.inputs(params, "cpu").items()}
    got = gradients(inputs, causal=False)
    assert not got["dq"].any()
    assert not got["dk"].any()
    assert torch.equal(got["dv"], inputs["dout"])


def inputs_of(**fields):
    params = OP.Params(**{"direction": "backward", "batch": 2, "num_heads": 2, "head_dim": 64, **fields})
    return params, {name: tensor.clone() for name, tensor in OP.inputs(params, "cpu").items()}


@pytest.mark.parametrize("distort", DISTORTIONS)
def test_inputs_far_from_normal(distort):
    params, inputs = inputs_of(seqlen=130, causal=True)
    check({**{name: distort(inputs[name]) for name in "qkv"}, "dout": inputs["dout"]}, **params.model_dump())


def test_sequences_do_not_interfere():
    _, inputs = inputs_of(seqlen=70)
    alone = gradients(inputs, causal=False)
    for tensor in inputs.values():
        tensor[1] = 0
    beside_zeros = gradients(inputs, causal=False)
    for name, gradient in beside_zeros.items():
        assert torch.equal(gradient[0], alone[name][0])
        assert not gradient[1].any()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_strided_inputs_equal_contiguous_ones(causal):
    params, inputs = inputs_of(seqlen=70, num_heads=3)
    qkv = torch.stack([inputs[name].transpose(1, 2) for name in "qkv"], 2)
    strided = dict(zip("qkv", (t.transpose(1, 2) for t in qkv.unbind(2)), strict=True))
    strided["dout"] = inputs["dout"].transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided["q"].is_contiguous()
    assert all(torch.equal(strided[name], inputs[name]) for name in inputs)
    check(strided, **params.model_dump(exclude={"causal"}), causal=causal)


def test_the_same_bits_in_thirty_runs():
    _, inputs = inputs_of(seqlen=70)
    first = gradients(inputs, causal=True)
    for _ in range(29):
        assert all(torch.equal(gradient, first[name]) for name, gradient in gradients(inputs, causal=True).items())


def test_large_activations_stay_finite():
    params = OP.Params(direction="backward", batch=1, num_heads=2, seqlen=65, head_dim=64)
    inputs = {name: 1000 * tensor for name, tensor in OP.inputs(params, "cpu").items()}
    inputs["dout"] = inputs["dout"] / 1000
    assert all(gradient.isfinite().all() for gradient in gradients(inputs, causal=False).values())


@gpu
@pytest.mark.parametrize("arch", [None, "sm_70"], ids=["native", "sm_70"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [64, 111, 128])
def test_on_a_gpu_by_the_kernels(head_dim, causal, arch):
    fields = {"batch": 2, "num_heads": 4, "num_heads_kv": 2, "seqlen_q": 300, "seqlen_k": 517, "head_dim": head_dim}
    params = OP.Params(direction="backward", causal=causal, **fields)
    check(OP.inputs(params, "cuda"), kernel_arch=arch, causal=causal, **fields)


@gpu
def test_bfloat16_on_a_gpu():
    fields = {"seqlen": 300, "dtype": "bfloat16"}
    check(OP.inputs(OP.Params(direction="backward", batch=1, num_heads=2, head_dim=64, **fields), "cuda"), **fields)
