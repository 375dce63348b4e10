"""The block-sparse op against the masked dense formula, and its pattern and counts against counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.ops import OPS
from harness.ops.block_sparse_attention import block_pattern

OP = OPS["block_sparse_attention"]


def params(**fields):
    shape = {"batch": 2, "num_heads": 3, "seqlen": 100, "head_dim": 16, "block": 32, "density": 0.4}
    return OP.Params(**{**shape, **fields})


def element_mask(pattern: torch.Tensor, block: int, seqlen: int) -> torch.Tensor:
    """Bool [heads, seqlen, seqlen], by repetition."""
    return pattern.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seqlen, :seqlen]


def masked_attention(inputs, block, causal, softmax):
    """Out in float64, from exponentials: an independent way to the same function, differentiable."""
    q, k, v = (inputs[name].double().requires_grad_() for name in ("q", "k", "v"))
    seqlen = q.shape[2]
    kept = element_mask(inputs["pattern"], block, seqlen)
    visible = torch.ones(seqlen, seqlen, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    weights = torch.exp(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5)
    total = (weights * (kept & visible)).sum(-1)
    if softmax == "pruned_as_zero":
        total = total + (~kept & visible).sum(-1)
    out = torch.einsum("bhij,bhjd->bhid", weights * (kept & visible), v)
    return (out / torch.where(total > 0, total, 1.0)[..., None]), (q, k, v)


@pytest.mark.parametrize("softmax", ["renormalised", "pruned_as_zero"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", ["shared", "per head"])
def test_reference_is_masked_attention(softmax, causal, heads):
    case = params(direction="backward", softmax=softmax, causal=causal, seed=3)
    inputs = dict(OP.inputs(case, "cpu"))
    if heads == "per head":
        inputs["pattern"] = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(5)) < 0.4
    inputs["pattern"][:, 1] = False  # an empty row of blocks
    inputs["pattern"][:, :, 2] = False  # and an empty column
    out, leaves = masked_attention(inputs, case.block, causal, softmax)
    expected = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, inputs["dout"].double()), strict=True))
    gradients = OP.reference(case, inputs)
    forward_inputs = {name: t for name, t in inputs.items() if name != "dout"}
    forward = OP.reference(params(softmax=softmax, causal=causal, seed=3), forward_inputs)
    torch.testing.assert_close(forward["out"], out.detach(), rtol=1e-11, atol=1e-12)
    for name, value in gradients.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)
    assert not forward["out"][:, :, 32:64].any()
    assert not gradients["dq"][:, :, 32:64].any()
    assert not gradients["dk"][:, :, 64:96].any()


def test_all_blocks_kept_is_dense_attention():
    sparse = params(direction="backward", density=1.0, causal=True)
    fields = {"direction": "backward", "batch": 2, "num_heads": 3, "seqlen": 100, "head_dim": 16, "causal": True}
    dense = OPS["attention"].Params(**fields)
    inputs = OP.inputs(sparse, "cpu")
    assert inputs["pattern"].tril().equal(torch.ones(1, 4, 4, dtype=torch.bool).tril())
    for softmax in ("renormalised", "pruned_as_zero"):
        got = OP.reference(params(direction="backward", density=1.0, causal=True, softmax=softmax), inputs)
        for name, value in OPS["attention"].reference(dense, inputs).items():
            torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen", "block"), [(100, 32), (137, 64), (1025, 128), (1024, 32)])
def test_pattern_keeps_the_density_and_only_visible_blocks(seqlen, block, causal):
    """T5: a density within [0, 1], also where blocks are cut."""
    shape = {"seqlen": seqlen, "block": block, "density": 0.3, "causal": causal}
    case = params(**shape)
    pattern = block_pattern(case)
    blocks = -(-seqlen // block)
    candidates = np.tril(np.ones((blocks, blocks), bool)) if causal else np.ones((blocks, blocks), bool)
    assert pattern.shape == (blocks, blocks)
    assert not (pattern & ~candidates).any()
    assert pattern.sum() == max(1, round(0.3 * candidates.sum()))
    assert OP.columns(case)["density"] == pattern.sum() / candidates.sum() <= 1
    assert not np.array_equal(
        pattern, block_pattern(params(seqlen=seqlen, block=block, density=0.3, causal=causal, seed=9))
    )


def test_window_pattern_is_the_band_nearest_to_the_density():
    case = params(seqlen=1024, block=32, density=0.25, pattern="window")
    pattern = block_pattern(case)
    row, column = np.nonzero(pattern)
    width = abs(row - column).max()
    assert pattern.sum() == (2 * width + 1) * 32 - width * (width + 1)
    assert OP.columns(case)["density"] == pytest.approx(0.25, abs=2 / 32)


@pytest.mark.parametrize("causal", [False, True])
def test_flops_count_the_kept_elements(causal):
    case = params(seqlen=137, density=0.5, causal=causal)
    kept = element_mask(OP.inputs(case, "cpu")["pattern"], 32, 137)
    if causal:
        kept = kept.tril()
    assert OP.flops(case) == 4 * 2 * 3 * int(kept.sum()) * 16
    assert OP.flops(params(seqlen=137, density=0.5, causal=causal, direction="backward")) == 2.5 * OP.flops(case)


def test_half_of_the_density_is_about_half_of_the_flops():
    full, half = (OP.flops(params(seqlen=2048, density=d)) for d in (1.0, 0.5))
    assert half == full / 2
    dense = OPS["attention"].Params(batch=2, num_heads=3, seqlen=2048, head_dim=16)
    assert full == OPS["attention"].flops(dense)
