"""Reference, emulated kernels and kernels on a GPU against masked dense attention in float64 with autograd."""

from __future__ import annotations

import pytest
import torch

from impl.cuda import emulator
from impl.sparse_training.api import block_sparse_attention
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.kernels import attention
from tests.impl.sparse_training.blocks import (
    GPU,
    GPU_SM80,
    KERNELS,
    SOFTMAX,
    assert_gate,
    attend,
    emulated,
    everywhere,
    masked_dense,
    random_inputs,
    random_pattern,
    with_gradients,
)

softmaxes = pytest.mark.parametrize("softmax", SOFTMAX)
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@softmaxes
@causal_or_not
@pytest.mark.parametrize(
    ("seqlen", "block"), [(100, 32), (137, 64), (160, 128), (33, 32), (1, 32), (20, 64), (1025, 128)]
)
@pytest.mark.parametrize("backend", ["reference", GPU])
def test_outputs_and_gradients_pass_the_gate(backend, softmax, causal, seqlen, block):
    """T1, T2, T5: also lengths that are no multiple of the block."""
    q, k, v, dout = random_inputs(seqlen, heads=1 if seqlen > 1000 else 3, batch=1, seed=seqlen)
    pattern = random_pattern(seqlen, block, seed=seqlen)
    assert_gate(backend, [q, k, v], dout, pattern, block, causal=causal, softmax=softmax)


@emulated
@pytest.mark.parametrize(
    ("arch", "block", "head_dim", "seqlen", "options"),
    [
        ("sm_80", 32, 32, 137, {"softmax": "pruned_as_zero", "causal": True}),
        ("sm_80", 64, 64, 137, {"causal": True}),
        ("sm_80", 64, 64, 200, {"softmax": "pruned_as_zero"}),
        ("sm_80", 128, 128, 137, {"softmax": "pruned_as_zero", "causal": True}),
        ("sm_80", 32, 128, 70, {"softmax": "pruned_as_zero"}),
        ("sm_70", 64, 64, 137, {"causal": True}),
        ("sm_70", 32, 128, 70, {"softmax": "pruned_as_zero"}),
        ("sm_90a", 64, 64, 137, {"causal": True}),
        ("sm_90a", 64, 64, 200, {"softmax": "pruned_as_zero"}),
        ("sm_90a", 128, 128, 137, {"softmax": "pruned_as_zero", "causal": True}),
    ],
)
def test_kernels_pass_the_gate_and_have_no_races(arch, block, head_dim, seqlen, options):
    q, k, v, dout = random_inputs(seqlen, heads=2, head_dim=head_dim, batch=1)
    pattern = random_pattern(seqlen, block, heads=2, density=0.7)
    assert_gate(f"emulated {arch}", [q, k, v], dout, pattern, block, check_races=True, **options)


@emulated
@pytest.mark.parametrize("head_dim", [64, 128])
def test_lists_of_all_lengths_on_hopper_have_no_races_and_no_order(head_dim):
    """None, one, and more than fit in the rings of tiles."""
    q, k, v, dout = random_inputs(450, heads=2, heads_kv=1, head_dim=head_dim, batch=1)
    pattern = random_pattern(450, 64, heads=2, density=0.3)
    pattern[:, 3] = pattern[:, :, 5] = pattern[1, 0] = False
    pattern[0, :, 2] = pattern[0, 4] = True
    first = assert_gate("emulated sm_90a", [q, k, v], dout, pattern, 64, check_races=True)
    again = attend("emulated sm_90a", [q, k, v], dout, pattern, 64, seed=7)
    assert all(map(torch.equal, first, again))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "block", "head_dim", "dtype"),
    [
        *(("gpu sm_80", block, head_dim, torch.float16) for block in (32, 64, 128) for head_dim in (32, 59, 128)),
        *(("gpu sm_90a", block, head_dim, torch.float16) for block in (64, 128) for head_dim in (59, 128)),
        *(("gpu sm_70", block, head_dim, torch.float16) for block, head_dim in ((32, 64), (64, 128), (128, 40))),
        *((f"gpu {arch}", 64, 64, torch.bfloat16) for arch in ("sm_80", "sm_90a")),
    ],
)
def test_every_kernel_on_a_gpu(backend, block, head_dim, dtype):
    q, k, v, dout = random_inputs(777, heads=4, heads_kv=2, head_dim=head_dim, dtype=dtype)
    pattern, lengths = random_pattern(777, block, heads=4), torch.tensor([777, 300])
    for causal in (False, True):
        for softmax in SOFTMAX:
            options = {"causal": causal, "softmax": softmax, "lengths": lengths}
            assert_gate(backend, [q, k, v], dout, pattern, block, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("arch", "block"),
    [(arch, b) for arch in ("sm_70", "sm_80", "sm_90a") for b in (32, 64, 128) if arch[:5] != "sm_90" or b > 32],
)
def test_smallest(arch, block, head_dim):
    """What compute-sanitizer can run of every kernel: two blocks and an edge."""
    seqlen = 2 * block + 9
    inputs, lengths = random_inputs(seqlen, heads=1, head_dim=head_dim, batch=2), torch.tensor([seqlen, block + 3])
    pattern = random_pattern(seqlen, block, heads=1)
    assert_gate(
        f"gpu {arch}", [*inputs[:3]], inputs[3], pattern, block, causal=True, softmax=SOFTMAX[0], lengths=lengths
    )


@softmaxes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes(softmax, dtype):
    q, k, v, dout = random_inputs(70, dtype=dtype)
    options = {"pattern": random_pattern(70, 32), "block": 32, "softmax": softmax}
    ours = attend("reference", [q, k, v], dout, **options)
    wide = [t.double() for t in (q, k, v)]
    right = with_gradients(lambda q, k, v: masked_dense(q, k, v, **options), wide, dout.double())
    for o, r in zip(ours, right, strict=True):
        assert o.dtype == dtype
        bound = 4 * torch.finfo(dtype).eps * r.abs().max().item()
        assert (o.double() - r).abs().max().item() <= bound


@everywhere
def test_bfloat16_passes_the_gate(backend):
    q, k, v, dout = random_inputs(100, head_dim=32, batch=1, heads=1, dtype=torch.bfloat16)
    assert_gate(backend, [q, k, v], dout, random_pattern(100, 32), 32)


@softmaxes
@everywhere
def test_patterns_and_grouped_heads_differ_per_head(backend, softmax):
    q, k, v, dout = random_inputs(100, heads=4, heads_kv=2, batch=1, head_dim=32)
    assert_gate(backend, [q, k, v], dout, random_pattern(100, 32, heads=4), 32, causal=True, softmax=softmax)


@softmaxes
@causal_or_not
@everywhere
def test_empty_rows_and_columns_of_blocks(backend, causal, softmax):
    """T3."""
    q, k, v, dout = random_inputs(128, heads=1, head_dim=32)
    pattern = torch.ones(1, 4, 4, dtype=torch.bool)
    pattern[:, 1] = False
    pattern[:, :, 2] = False
    out, dq, dk, dv = assert_gate(backend, [q, k, v], dout, pattern, 32, causal=causal, softmax=softmax)
    assert not out[:, :, 32:64].any()
    assert not dq[:, :, 32:64].any()
    assert not dk[:, :, 64:96].any()
    assert not dv[:, :, 64:96].any()


@softmaxes
@everywhere
def test_nothing_kept_is_zero(backend, softmax):
    q, k, v, dout = random_inputs(70, head_dim=32)
    pattern = torch.zeros(1, 3, 3, dtype=torch.bool)
    for tensor in assert_gate(backend, [q, k, v], dout, pattern, 32, softmax=softmax):
        assert not tensor.any()


@everywhere
def test_blocks_that_the_causal_mask_hides_entirely(backend):
    q, k, v, dout = random_inputs(96, heads=1, head_dim=32)
    pattern = torch.zeros(1, 3, 3, dtype=torch.bool)
    pattern[0, 0, 2] = pattern[0, 2, 0] = True  # rows of block 0 keep only keys of their future
    out, *_ = assert_gate(backend, [q, k, v], dout, pattern, 32, causal=True)
    assert not out[:, :, :32].any()


def assert_lengths_hide_keys(backend, block, head_dim, lengths, **options):
    """Right by the gate; what lies past the lengths, be it NaN, changes nothing; nor do other sequences."""
    seqlen = max(lengths)
    q, k, v, dout = random_inputs(seqlen, heads=1, head_dim=head_dim, batch=len(lengths))
    pattern = random_pattern(seqlen, block, density=0.6)
    results = assert_gate(backend, [q, k, v], dout, pattern, block, lengths=torch.tensor(lengths), **options)
    for sequence, length in enumerate(lengths):
        k[sequence, :, length:] = v[sequence, :, length:] = torch.nan
    again = attend(backend, [q, k, v], dout, pattern, block, lengths=torch.tensor(lengths), **options)
    alone = attend(backend, [t[:1] for t in (q, k, v)], dout[:1], pattern, block, **options)
    for tensor, with_nan, first in zip(results, again, alone, strict=True):
        assert torch.equal(tensor, with_nan)
        assert torch.equal(tensor[:1], first)
    return results


@softmaxes
@causal_or_not
@everywhere
def test_lengths_hide_whole_blocks_and_what_lies_in_them(backend, causal, softmax):
    """T7: an empty sequence, whole blocks of padding."""
    results = assert_lengths_hide_keys(backend, 32, 32, [100, 0, 20, 70], causal=causal, softmax=softmax)
    assert not any(tensor[1].any() for tensor in results)


@emulated
@softmaxes
@pytest.mark.parametrize("arch", ["sm_70", "sm_90a"])
def test_lengths_hide_keys_in_other_kernels(arch, softmax):
    assert_lengths_hide_keys(f"emulated {arch}", 64, 64, [200, 0, 70], softmax=softmax)


@everywhere
@causal_or_not
def test_a_length_outside_the_sequence_is_its_nearer_end(backend, causal):
    (*tensors, dout), pattern = random_inputs(70, heads=1, head_dim=32, batch=3), random_pattern(70, 64)
    outside, inside = (
        attend(backend, tensors, dout, pattern, 64, causal=causal, lengths=torch.tensor(lengths))
        for lengths in ([-40, 1000, 33], [0, 70, 33])
    )
    assert all(torch.equal(*pair) for pair in zip(outside, inside, strict=True))


@pytest.mark.parametrize("backend", ["reference", GPU])
def test_lengths_of_64_bits_do_not_wrap_around(backend):
    (*tensors, dout), pattern = random_inputs(70, heads=1, head_dim=32, batch=3), random_pattern(70, 64)
    outside, inside = (
        attend(backend, tensors, dout, pattern, 64, lengths=torch.tensor(lengths))
        for lengths in ([2**31, 2**32 + 5, -(2**32) + 70], [70, 70, 0])
    )
    assert all(torch.equal(*pair) for pair in zip(outside, inside, strict=True))


@softmaxes
@everywhere
def test_gradients_of_an_even_full_pattern(backend, softmax):
    """T1: the smallest input it was reported with."""
    q, k, v, dout = random_inputs(128, heads=1, batch=1, head_dim=64)
    assert_gate(backend, [q, k, v], dout, torch.ones(1, 2, 2, dtype=torch.bool), 64, softmax=softmax)


@softmaxes
def test_all_blocks_kept_is_dense_attention(softmax):
    """T4."""
    q, k, v, _ = random_inputs(100, dtype=torch.float32)
    out = block_sparse_attention(q, k, v, torch.ones(1, 4, 4, dtype=torch.bool), 32, causal=True, softmax=softmax)
    dense = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(out.double(), dense, rtol=1e-5, atol=1e-6)


@everywhere
def test_pruned_keys_and_values_do_not_matter(backend):
    """T2."""
    q, k, v, dout = random_inputs(128, heads=1, head_dim=32)
    pattern = torch.eye(4, dtype=torch.bool)[None]
    first = attend(backend, [q, k, v], dout, pattern, 32)
    k[:, :, 96:], v[:, :, 96:] = 1e3, torch.nan
    again = attend(backend, [q, k, v], dout, pattern, 32)
    assert all(torch.equal(a[:, :, :96], b[:, :, :96]) for a, b in zip(first, again, strict=True))


@everywhere
def test_pruned_as_zero_rows_sum_to_less_than_one_by_the_right_amount(backend):
    q, k, v, dout = random_inputs(128, heads=1, batch=1, head_dim=32)
    q.zero_()  # all logits 0: every entry weighs 1/128, kept or not
    pattern = random_pattern(128, 32)
    out, *_ = attend(backend, [q, k, torch.ones_like(v)], dout, pattern, 32, softmax="pruned_as_zero")
    kept_share = pattern[0].repeat_interleave(32, 0).double().mean(1)
    torch.testing.assert_close(out[0, 0, :, 0].double(), kept_share, rtol=1e-6, atol=0)


@softmaxes
def test_large_logits_stay_finite(softmax):
    q, k, v, dout = random_inputs(64, dtype=torch.float32)
    options = {"pattern": random_pattern(64, 32, density=0.7), "block": 32, "softmax": softmax}
    for scale in (1e3, -1e3):
        tensors = [q * scale, k, v]
        ours = attend("reference", tensors, dout, **options)
        wide = [t.double() for t in tensors]
        right = with_gradients(lambda q, k, v: masked_dense(q, k, v, **options), wide, dout.double())
        for o, r in zip(ours, right, strict=True):
            torch.testing.assert_close(o.double(), r, rtol=1e-3, atol=1e-3 * r.abs().max().item())


@softmaxes
@pytest.mark.parametrize("backend", KERNELS)
def test_large_activations_stay_finite_in_kernels(backend, softmax):
    q, k, v, dout = random_inputs(96, heads=1, batch=1, head_dim=32)
    pattern = random_pattern(96, 32, density=0.7)
    results = attend(backend, [1000 * t for t in (q, k, v)], dout, pattern, 32, softmax=softmax)
    assert all(tensor.isfinite().all() for tensor in results)


@everywhere
def test_two_runs_are_bitwise_equal(backend):
    """T17."""
    q, k, v, dout = random_inputs(100, head_dim=32)
    emulation = [{"seed": 1}, {"seed": 2}] if backend.startswith("emulated") else [{}, {}]
    runs = [attend(backend, [q, k, v], dout, random_pattern(100, 32, density=0.7), 32, **e) for e in emulation]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("backend", [GPU, GPU_SM80])
def test_thirty_runs_with_skewed_lists_are_bitwise_equal(backend):
    q, k, v, dout = random_inputs(4096, heads=4, head_dim=64)
    pattern = random_pattern(4096, 64, density=0.05)
    pattern[:, 7] = pattern[:, :, 9] = True
    first = attend(backend, [q, k, v], dout, pattern, 64)
    for _ in range(30):
        again = attend(backend, [q, k, v], dout, pattern, 64)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@everywhere
@pytest.mark.parametrize("layout", ["transposed", "odd_rows", "expanded_dout"])
def test_strided_inputs_give_what_contiguous_ones_give(backend, layout):
    q, k, v, dout = random_inputs(70, heads=2, head_dim=40)
    if layout == "expanded_dout":  # as the gradient of a sum
        dout = torch.ones(()).half().expand(q.shape)
        strided = [q, k, v, dout]
    elif layout == "transposed":
        strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v, dout)]
    else:
        strided = [torch.nn.functional.pad(t, (1, 2))[..., 1:-2] for t in (q, k, v, dout)]
    options = {"pattern": random_pattern(70, 32), "block": 32, "causal": True}
    expected = attend(backend, [q, k, v], dout.contiguous(), **options)
    got = attend(backend, strided[:3], strided[3], **options)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@everywhere
def test_head_dims_off_the_chunk(backend):
    q, k, v, dout = random_inputs(70, heads=1, head_dim=27)
    assert_gate(backend, [q, k, v], dout, random_pattern(70, 32), 32)


def test_tiles_meet_no_bank_conflicts():
    if reason := emulator.available():
        pytest.skip(reason)
    q, k, v, dout = random_inputs(128, heads=1, batch=1, head_dim=64)
    lists = BlockPattern.of(torch.ones(1, 2, 2, dtype=torch.bool), 64)
    counts = []

    def launch(*step):
        counts.extend(emulator.count(*step))

    options = {"block": 64, "causal": False, "launch": launch}
    saved = attention.forward(q, k, v, lists.rows, None, softmax="renormalised", **options)
    attention.backward(dout, q, k, v, *saved, lists.rows, lists.columns, None, **options)
    shared = [c for c in counts if c.ideal_wavefronts]
    assert {c.instruction for c in shared} >= {"cp.async, to shared", "ldmatrix.x4", "ldmatrix.x4.trans", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pattern": torch.ones(1, 16, 16, dtype=torch.bool)},
            r"16 x 16 blocks, but seqlen 64 in blocks of 32 has 2 x 2",
        ),
        ({"pattern": torch.ones(2, 2, 2, dtype=torch.bool)}, r"2 patterns for 3 heads; there must be 1 or 3"),
        ({"pattern": torch.ones(1, 2, 2)}, "must be bool"),
        ({"softmax": "dense"}, "renormalised or pruned_as_zero"),
        ({"block": 0}, "positive"),
        ({"block": None}, "needs its block"),
        ({"pattern": BlockPattern.of(torch.ones(1, 1, 1, dtype=torch.bool), 64)}, "blocks of 64, not 32"),
        ({"lengths": torch.ones(3).int()}, r"lengths must be integers \[2\]"),
        ({"lengths": torch.ones(2)}, r"lengths must be integers \[2\]"),
        (
            {"k": torch.ones(2, 3, 60, 24).half(), "v": torch.ones(2, 3, 60, 24).half()},
            r"must be \[2, heads_kv, 64, 24\]",
        ),
        ({"k": torch.ones(2, 2, 64, 24).half(), "v": torch.ones(2, 2, 64, 24).half()}, "no multiple of 2 key heads"),
        ({"v": torch.ones(2, 3, 64, 8).half()}, "k and v alike"),
        ({"q": torch.ones(2, 3, 64, 24)}, "must share"),
        (dict.fromkeys("qkv", torch.ones(2, 3, 64, 0)), "head_dim and key heads must be positive, not 0 and 3"),
        (dict.fromkeys("kv", torch.ones(2, 0, 64, 24).half()), "head_dim and key heads must be positive, not 24 and 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    """T6: a pattern of another length, among others."""
    q, k, v, _ = random_inputs(64)
    arguments = {"q": q, "k": k, "v": v, "pattern": torch.ones(1, 2, 2, dtype=torch.bool), "block": 32, **change}
    with pytest.raises(ValueError, match=message) as caught:
        block_sparse_attention(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "head_dim", "block", "message"),
    [
        (torch.float32, 64, 32, "float16 and bfloat16"),
        (torch.float16, 136, 32, "head_dim up to 128"),
        (torch.float16, 64, 16, "blocks of"),
    ],
)
def test_a_gpu_refuses_what_has_no_kernel(dtype, head_dim, block, message):
    q = torch.ones(1, 1, 64, head_dim, dtype=dtype, device="cuda")
    with pytest.raises(ValueError, match=message):
        block_sparse_attention(q, q, q, torch.ones(1, 64 // block, 64 // block, dtype=torch.bool, device="cuda"), block)


@softmaxes
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_op_is_registered_as_torch_expects(device, softmax):
    q, k, v, _ = (t.to(device) for t in random_inputs(70, heads=2, heads_kv=1, head_dim=8))
    tensors = [t.requires_grad_() for t in (q, k, v)]
    pattern = BlockPattern.of(random_pattern(70, 32).to(device), 32)
    op = torch.ops.voltabench.block_sparse_attention.default
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (*tensors, pattern.rows, pattern.columns, torch.tensor([70, 9], device=device).int(), 32, True, softmax)
    torch.library.opcheck(op, arguments, test_utils=checks)
