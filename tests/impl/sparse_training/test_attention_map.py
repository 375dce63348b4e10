"""The averaged map against float64, by each of its ways."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from impl.cuda import emulator
from impl.sparse_training.attention_map import averaged_map, by_kernels, probabilities
from impl.sparse_training.kernels import attention_map
from impl.sparse_training.methods.dense import Flash
from tests.impl.sparse_training.blocks import EMULATED, GPU, emulated, random_inputs

everywhere = pytest.mark.parametrize("way", ["plain", EMULATED, GPU])


def found(way, q, k, lengths, **emulation):
    if way == "plain":
        return averaged_map(q.float(), k.float(), lengths)
    if way == "gpu":
        q, k, lengths = q.cuda(), k.cuda(), lengths.cuda()
        assert attention_map.takes(q, k)
        return averaged_map(q, k, lengths).cpu()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new tensors with NaN
    try:
        return by_kernels(q, k, lengths, functools.partial(emulator.launch, **emulation))
    finally:
        torch.use_deterministic_algorithms(False)


def exact(q, k, lengths):
    """float64, and the largest score; an empty sequence sees its first key."""
    total, largest = torch.zeros(q.shape[2], q.shape[2], dtype=torch.float64), 0.0
    for queries, keys, length in zip(q.double(), k.double(), lengths.clamp(min=1), strict=True):
        scores = queries @ keys[:, :length].mT * q.shape[3] ** -0.5
        total[:, :length] += scores.softmax(-1).sum(0)
        largest = max(largest, scores.abs().max().item())
    return total / (q.shape[0] * q.shape[1]), largest


def assert_exact(ours, q, k, lengths):
    """Each element to the rounding of float: of a score, its log-sum-exp, the exponential and the mean."""
    right, largest = exact(q, k, lengths)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), right, rtol=(8 + 16 * largest) * 2**-24, atol=1e-30)


@everywhere
@pytest.mark.parametrize(("seqlen", "head_dim"), [(137, 32), (128, 64), (65, 128)])
def test_the_map_is_exact(way, seqlen, head_dim):
    q, k, *_ = random_inputs(seqlen, heads=2, head_dim=head_dim, batch=3)
    lengths = torch.tensor([seqlen, 20, seqlen - 1])
    assert_exact(found(way, q, k, lengths), q, k, lengths)


@everywhere
def test_keys_past_the_lengths_count_zero(way):
    """T7: whole tiles of padding, an empty sequence, and NaN in what padding holds."""
    q, k, *_ = random_inputs(140, heads=1, head_dim=32, batch=4)
    lengths = torch.tensor([140, 0, 1, 128])
    if way != "plain":
        for keys, length in zip(k, lengths.clamp(min=1), strict=True):
            keys[:, length:] = torch.nan
    assert_exact(found(way, q, k, lengths), q, k, lengths)


@everywhere
def test_scores_far_apart(way):
    q, k, *_ = random_inputs(70, heads=1, head_dim=32, batch=1)
    q, k, lengths = q * 8, k * 2, torch.tensor([70])
    assert_exact(found(way, q, k, lengths), q, k, lengths)


@everywhere
def test_strided_views_bfloat16_and_more_sequences_than_parts(way):
    """As the model's projection gives them; 33 heads, so that a part has an uneven share."""
    qkv = torch.randn(33, 40, 3, 2, 32, generator=torch.Generator().manual_seed(4)).bfloat16()
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)
    lengths = torch.arange(8, 41)
    assert_exact(found(way, q, k, lengths), q, k, lengths)


@emulated
def test_log_sum_exps_that_are_given_are_taken():
    q, k, *_ = random_inputs(70, heads=2, head_dim=32, batch=1)
    lengths = torch.tensor([50])
    scores = (q.float() @ k.float().mT * 32**-0.5)[..., :50]
    ours = by_kernels(q, k, lengths, emulator.launch, scores.logsumexp(-1))
    assert_exact(ours, q, k, lengths)
    halved = by_kernels(q, k, lengths, emulator.launch, scores.logsumexp(-1) + math.log(2))
    torch.testing.assert_close(2 * halved, ours, rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_forward_gives_its_log_sum_exps(padded):
    """As the trainer has it, with sequences of several lengths; the output is the unwatched one."""
    qkv = torch.randn(5, 300, 3, 2, 32, generator=torch.Generator().manual_seed(1)).half().cuda()
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    lengths = torch.tensor([300, 1, 17, 256, 299]).cuda() if padded else torch.full((5,), 300).cuda()
    flash = Flash(padded)
    expected = flash(q, k, v, lengths)
    flash.watched = True
    out = flash(q, k, v, lengths)
    assert torch.equal(out, expected)
    assert_exact(flash.map.cpu(), q.cpu(), k.cpu(), lengths.cpu())
    exact_out = probabilities(q.double(), k.double(), lengths) @ v.double()
    assert (out.double() - exact_out).abs().max() < 2**-9 * exact_out.abs().max()


@emulated
def test_the_kernel_has_no_races_and_no_order():
    q, k, *_ = random_inputs(140, heads=2, head_dim=32, batch=2)
    lengths = torch.tensor([140, 90])
    first, second = (found("emulated sm_80", q, k, lengths, seed=seed, check_races=True) for seed in (1, 2))
    assert torch.equal(first, second)


@pytest.mark.gpu
def test_the_map_is_the_same_from_run_to_run():
    q, k, *_ = random_inputs(1100, heads=2, head_dim=32, batch=40)
    lengths = torch.randint(1, 1101, (40,), generator=torch.Generator().manual_seed(0))
    first, second = (found("gpu", q, k, lengths) for _ in range(2))
    assert torch.equal(first, second)
    assert_exact(first, q, k, lengths)


def test_what_the_kernel_takes():
    q, k, *_ = random_inputs(16, head_dim=32)
    assert attention_map.takes(q, k)
    assert not attention_map.takes(q.float(), k.float())
    assert not attention_map.takes(q[..., :20], k[..., :20])
    assert not attention_map.takes(*random_inputs(16, head_dim=136)[:2])
