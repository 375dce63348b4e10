"""MultiheadAttention against torch's own with the same parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from impl.spark_attention.multihead import MultiheadAttention
from tests.impl.spark_attention.modes import assert_autocasts, assert_captured, assert_compiles

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def pair(device="cpu", **options):
    """Ours in float16 and torch's in float32, with the same parameters."""
    ours = MultiheadAttention(64, 4, device=device, **options).half()
    theirs = nn.MultiheadAttention(64, 4, device=device, **options)
    theirs.load_state_dict({name: value.float() for name, value in ours.state_dict().items()})
    return ours, theirs


def check(ours, theirs, *inputs, **options):
    got, weights = ours(*inputs, need_weights=False, **options)
    right, _ = theirs(*(x.float() for x in inputs), need_weights=False, **options)
    assert weights is None
    torch.testing.assert_close(got.float(), right, rtol=0, atol=4e-3)


def inputs(*shape, device="cpu"):
    return torch.randn(*shape, device=device).half()


@on_each_device
@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_with_padding(batch_first, device):
    x = inputs(3, 9, 64, device=device) if batch_first else inputs(9, 3, 64, device=device)
    padding = torch.zeros(3, 9, dtype=torch.bool, device=device)
    padding[1, 5:] = True
    check(*pair(device, batch_first=batch_first), x, x, x, key_padding_mask=padding)


@on_each_device
def test_cross_attention_with_masks(device):
    ours, theirs = pair(device, batch_first=True, kdim=48, vdim=40, bias=False)
    q, k, v = (inputs(2, *shape, device=device) for shape in ((7, 64), (11, 48), (11, 40)))
    for mask in (torch.rand(7, 11, device=device) < 0.3, torch.randn(8, 7, 11, device=device)):
        check(ours, theirs, q, k, v, attn_mask=mask)
    padding = torch.randn(2, 11, device=device)
    check(ours, theirs, q, k, v, attn_mask=torch.randn(7, 11, device=device), key_padding_mask=padding)


def test_causal_hint_and_one_sequence():
    ours, theirs = pair()
    x = inputs(9, 64)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    check(ours, theirs, x, x, x, attn_mask=hidden, is_causal=True)
    with pytest.raises(ValueError, match="is a hint about attn_mask"):
        ours(x, x, x, need_weights=False, is_causal=True)


def test_weights_are_torchs():
    ours, theirs = pair()
    x = inputs(9, 3, 64)
    _, weights = ours(x, x, x)
    _, right = theirs(x.float(), x.float(), x.float())
    torch.testing.assert_close(weights.float(), right, rtol=0, atol=2e-3)


def test_dropout_only_in_training():
    ours = MultiheadAttention(64, 4, dropout=0.5).half()
    x = inputs(9, 3, 64)
    training = [ours(x, x, x, need_weights=False)[0] for _ in range(2)]
    assert not torch.equal(*training)
    ours.eval()
    assert torch.equal(*(ours(x, x, x, need_weights=False)[0] for _ in range(2)))


def self_attention(device):
    """Ours as a function of its input, in float16 or float32, and an input."""
    ours, _ = pair(device)
    layers = {torch.float16: ours, torch.float32: copy.deepcopy(ours).float()}
    return lambda x: layers[x.dtype](x, x, x, need_weights=False)[0], [inputs(9, 3, 64, device=device)]


@on_each_device
def test_compiles_whole(device):
    assert_compiles(*self_attention(device))


@on_each_device
def test_trains_under_autocast(device):
    assert_autocasts(*self_attention(device))


@pytest.mark.gpu
def test_captured_by_a_cuda_graph():
    assert_captured(*self_attention("cuda"))


@pytest.mark.parametrize(
    ("shapes", "masks", "message"),
    [
        ([(9, 3, 60), (9, 3, 64), (9, 3, 64)], {}, "query must be of 2 or 3 axes, the last 64"),
        ([(9, 3, 64), (9, 64), (9, 64)], {}, "key must be of 2 or 3 axes, the last 64 with the 3 axes of query"),
        ([(1, 9, 3, 64)] * 3, {}, "query must be of 2 or 3 axes"),
        ([(9, 3, 64)] * 3, {"key_padding_mask": (9,)}, r"key_padding_mask must be \[3, 9\], not \[9\]"),
        ([(9, 64)] * 3, {"key_padding_mask": (3, 9)}, r"key_padding_mask must be \[9\], not \[3, 9\]"),
        ([(9, 3, 64)] * 3, {"attn_mask": (3, 9, 9)}, r"attn_mask must be \[9, 9\] or \[12, 9, 9\], not \[3, 9, 9\]"),
        ([(9, 3, 64)] * 3, {"attn_mask": (1, 9)}, "attn_mask must be"),
    ],
)
def test_shapes_that_torch_refuses_are_refused(shapes, masks, message):
    given = [inputs(*shape) for shape in shapes]
    masks = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in masks.items()}
    ours, theirs = pair()
    with pytest.raises(ValueError, match=message):
        ours(*given, need_weights=False, **masks)
    with pytest.raises((AssertionError, RuntimeError)):
        theirs(*(x.float() for x in given), need_weights=False, **masks)


@pytest.mark.parametrize("option", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_what_is_refused(option):
    with pytest.raises(NotImplementedError, match="supports neither"):
        MultiheadAttention(64, 4, **option)
