"""The op against masked dense attention in float64 with autograd, through the numerical gate."""

from __future__ import annotations

import pytest
import torch

from impl.sparse_training.api import block_sparse_attention

SOFTMAX = ["renormalised", "pruned_as_zero"]


def random_inputs(seqlen, heads=3, heads_kv=None, head_dim=24, batch=2, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = (heads, heads_kv or heads, heads_kv or heads, heads)
    return [torch.randn(batch, h, seqlen, head_dim, generator=generator).to(dtype) for h in counts]  # q, k, v, dout


def random_pattern(seqlen, block, heads=1, density=0.4, seed=0):
    blocks = -(-seqlen // block)
    return torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(seed)) < density


def masked_dense(q, k, v, pattern, block, causal, softmax):
    """Logits of pruned entries set to 0 or -inf, one softmax over the row, pruned weights dropped. In q's dtype."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seqlen = q.shape[2]
    kept = pattern.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seqlen, :seqlen]
    visible = torch.ones(seqlen, seqlen, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~kept, 0.0 if softmax == "pruned_as_zero" else -torch.inf)
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return p.masked_fill(~(kept & visible), 0) @ v


def with_gradients(function, tensors, dout):
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def assert_gate(tensors, dout, pattern, block, causal, softmax):
    """Errors against float64 at most 2x (out) and 3x (gradients) plain half precision's own, one ulp at least."""
    options = {"pattern": pattern, "block": block, "causal": causal, "softmax": softmax}
    wide = [t.double() for t in tensors]
    reference = with_gradients(lambda q, k, v: masked_dense(q, k, v, **options), wide, dout.double())
    plain = with_gradients(lambda q, k, v: masked_dense(q, k, v, **options), tensors, dout)
    ours = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), tensors, dout)
    for name, factor, r, p, o in zip(("out", "dq", "dk", "dv"), (2, 3, 3, 3), reference, plain, ours, strict=True):
        assert o.shape == r.shape
        assert o.dtype == tensors[0].dtype
        largest = torch.tensor(r.abs().max().item(), dtype=o.dtype)
        ulp = torch.nextafter(largest, torch.tensor(torch.inf, dtype=o.dtype)) - largest
        limit = max(factor * (p.double() - r).abs().max().item(), ulp.item())
        error = (o.double() - r).abs().max().item()
        assert error <= limit, f"{name}: error {error:.3g}, limit {limit:.3g}"
    return ours


@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("seqlen", "block"), [(100, 32), (137, 64), (160, 128), (33, 32), (1, 32), (20, 64), (1025, 128)]
)
def test_outputs_and_gradients_pass_the_gate(softmax, causal, seqlen, block):
    q, k, v, dout = random_inputs(seqlen, seed=seqlen)
    assert_gate([q, k, v], dout, random_pattern(seqlen, block, seed=seqlen), block, causal, softmax)


@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(softmax, dtype):
    q, k, v, dout = random_inputs(70, dtype=dtype)
    pattern = random_pattern(70, 32)
    options = {"pattern": pattern, "block": 32, "softmax": softmax}
    ours = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), [q, k, v], dout)
    wide = [t.double() for t in (q, k, v)]
    right = with_gradients(lambda q, k, v: masked_dense(q, k, v, causal=False, **options), wide, dout.double())
    for o, r in zip(ours, right, strict=True):
        assert o.dtype == dtype
        bound = 4 * torch.finfo(dtype).eps * r.abs().max().item()
        assert (o.double() - r).abs().max().item() <= bound


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_patterns_and_grouped_heads_differ_per_head(softmax):
    q, k, v, dout = random_inputs(100, heads=4, heads_kv=2)
    assert_gate([q, k, v], dout, random_pattern(100, 32, heads=4), 32, True, softmax)


@pytest.mark.parametrize("softmax", SOFTMAX)
@pytest.mark.parametrize("causal", [False, True])
def test_empty_rows_and_columns_of_blocks(softmax, causal):
    q, k, v, dout = random_inputs(128)
    pattern = torch.ones(1, 4, 4, dtype=torch.bool)
    pattern[:, 1] = False
    pattern[:, :, 2] = False
    out, dq, dk, dv = assert_gate([q, k, v], dout, pattern, 32, causal, softmax)
    assert not out[:, :, 32:64].any()
    assert not dq[:, :, 32:64].any()
    assert not dk[:, :, 64:96].any()
    assert not dv[:, :, 64:96].any()


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_nothing_kept_is_zero(softmax):
    q, k, v, dout = random_inputs(70)
    pattern = torch.zeros(1, 3, 3, dtype=torch.bool)
    for tensor in assert_gate([q, k, v], dout, pattern, 32, False, softmax):
        assert not tensor.any()


def test_blocks_that_the_causal_mask_hides_entirely():
    q, k, v, dout = random_inputs(96)
    pattern = torch.zeros(1, 3, 3, dtype=torch.bool)
    pattern[0, 0, 2] = pattern[0, 2, 0] = True  # rows of block 0 keep only keys of their future
    out, *_ = assert_gate([q, k, v], dout, pattern, 32, True, "renormalised")
    assert not out[:, :, :32].any()


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_gradients_of_an_even_full_pattern(softmax):
    q, k, v, dout = random_inputs(256, head_dim=64)
    assert_gate([q, k, v], dout, torch.ones(1, 4, 4, dtype=torch.bool), 64, False, softmax)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_all_blocks_kept_is_dense_attention(softmax):
    q, k, v, _ = random_inputs(100, dtype=torch.float32)
    out = block_sparse_attention(q, k, v, torch.ones(1, 4, 4, dtype=torch.bool), 32, causal=True, softmax=softmax)
    dense = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(out.double(), dense, rtol=1e-5, atol=1e-6)


def test_pruned_keys_and_values_do_not_matter():
    q, k, v, _ = random_inputs(128)
    pattern = torch.eye(4, dtype=torch.bool)[None]
    out = block_sparse_attention(q, k, v, pattern, 32)
    k[:, :, 96:], v[:, :, 96:] = 1e3, torch.nan
    again = block_sparse_attention(q, k, v, pattern, 32)
    assert torch.equal(out[:, :, :96], again[:, :, :96])


def test_pruned_as_zero_rows_sum_to_less_than_one_by_the_right_amount():
    q, k, v, _ = random_inputs(64, dtype=torch.float32, heads=1, batch=1)
    q.zero_()  # all logits 0: every entry weighs 1/64, kept or not
    out = block_sparse_attention(q, k, torch.ones_like(v), random_pattern(64, 16), 16, softmax="pruned_as_zero")
    kept_share = random_pattern(64, 16)[0].repeat_interleave(16, 0).double().mean(1)
    torch.testing.assert_close(out[0, 0, :, 0].double(), kept_share, rtol=1e-6, atol=0)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_large_logits_stay_finite(softmax):
    q, k, v, dout = random_inputs(64, dtype=torch.float32)
    options = {"pattern": random_pattern(64, 32, density=0.7), "block": 32, "softmax": softmax}
    for scale in (1e3, -1e3):
        tensors = [q * scale, k, v]
        ours = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), tensors, dout)
        wide = [t.double() for t in tensors]
        right = with_gradients(lambda q, k, v: masked_dense(q, k, v, causal=False, **options), wide, dout.double())
        for o, r in zip(ours, right, strict=True):
            torch.testing.assert_close(o.double(), r, rtol=1e-3, atol=1e-3 * r.abs().max().item())


def test_two_runs_are_bitwise_equal():
    q, k, v, dout = random_inputs(100)
    options = {"pattern": random_pattern(100, 32), "block": 32}
    runs = [with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), [q, k, v], dout) for _ in "ab"]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_strided_inputs_give_what_contiguous_ones_give():
    q, k, v, dout = random_inputs(70)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    options = {"pattern": random_pattern(70, 32), "block": 32, "causal": True}
    expected = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), [q, k, v], dout)
    got = with_gradients(lambda q, k, v: block_sparse_attention(q, k, v, **options), strided, dout)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pattern": torch.ones(1, 16, 16, dtype=torch.bool)},
            r"16 x 16 blocks, but seqlen 64 in blocks of 32 has 2 x 2",
        ),
        ({"pattern": torch.ones(2, 2, 2, dtype=torch.bool)}, r"\[1 or 3, 2, 2\]"),
        ({"pattern": torch.ones(1, 2, 2)}, "must be bool"),
        ({"softmax": "dense"}, "renormalised or pruned_as_zero"),
        ({"block": 0}, "positive"),
        (
            {"k": torch.ones(2, 3, 60, 24).half(), "v": torch.ones(2, 3, 60, 24).half()},
            r"must be \[2, heads_kv, 64, 24\]",
        ),
        ({"k": torch.ones(2, 2, 64, 24).half(), "v": torch.ones(2, 2, 64, 24).half()}, "no multiple of 2 key heads"),
        ({"v": torch.ones(2, 3, 64, 8).half()}, "k and v alike"),
        ({"q": torch.ones(2, 3, 64, 24)}, "must share"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    q, k, v, _ = random_inputs(64)
    arguments = {"q": q, "k": k, "v": v, "pattern": torch.ones(1, 2, 2, dtype=torch.bool), "block": 32, **change}
    with pytest.raises(ValueError, match=message) as caught:
        block_sparse_attention(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_the_op_is_registered_as_torch_expects(softmax):
    q, k, v, _ = random_inputs(40, heads=2, heads_kv=1, head_dim=8)
    tensors = [t.requires_grad_() for t in (q, k, v)]
    op = torch.ops.voltabench.block_sparse_attention.default
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op, (*tensors, random_pattern(40, 16), 16, True, softmax), test_utils=checks)


@pytest.mark.gpu
def test_no_gpu_kernel_yet_is_said_clearly():
    tensors = [t.cuda() for t in (*random_inputs(64)[:3], torch.ones(1, 2, 2, dtype=torch.bool))]
    with pytest.raises(NotImplementedError, match="no GPU kernel yet"):
        block_sparse_attention(*tensors, 32)
