"""The recompute backward of the CPU op against float64 through the gate."""

from __future__ import annotations

import pytest
import torch

from harness.ops import OPS
from harness.verify import Gate
from impl.spark_attention.api import spark_attention

OP = OPS["attention"]


def gradients(inputs, causal):
    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    out = spark_attention(*leaves, causal=causal)
    return dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, inputs["dout"]), strict=True))


def check(inputs=None, **fields):
    params = OP.Params(**{"direction": "backward", "batch": 1, "num_heads": 2, "head_dim": 64, **fields})
    inputs = inputs or OP.inputs(params, "cpu")
    verdict = Gate(OP, params, inputs).check(gradients(inputs, params.causal))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [2, 31, 65, 129, 200])
def test_lengths_off_the_tile(seqlen, causal):
    check(seqlen=seqlen, num_heads=3, causal=causal)


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


def test_large_activations_stay_finite():
    params = OP.Params(direction="backward", batch=1, num_heads=2, seqlen=65, head_dim=64)
    inputs = {name: 1000 * tensor for name, tensor in OP.inputs(params, "cpu").items()}
    inputs["dout"] = inputs["dout"] / 1000
    assert all(gradient.isfinite().all() for gradient in gradients(inputs, causal=False).values())


@pytest.mark.gpu
def test_a_gpu_says_that_there_is_no_backward_kernel():
    q = torch.randn(1, 1, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    out = spark_attention(q, q, q)
    with pytest.raises(NotImplementedError, match="no backward kernel yet"):
        out.sum().backward()
