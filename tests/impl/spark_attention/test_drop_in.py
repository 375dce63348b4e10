"""The drop-ins against what they stand in for, computed by torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as of_torch

from impl.spark_attention.api import spark_attention
from impl.spark_attention.drop_in import scaled_dot_product_attention, spark_attn_func
from tests.impl.spark_attention.modes import assert_autocasts, assert_captured, assert_compiles

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def flash_causal(q, k, v):
    return spark_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True).transpose(1, 2)


def torchs_causal(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def torchs_masked(q, k, v):
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return scaled_dot_product_attention(q, k, v, mask)


each_function = pytest.mark.parametrize("function", [flash_causal, torchs_causal, torchs_masked])


def tensors(seqlen_q=20, seqlen_k=20, heads=4, heads_kv=4, device="cpu"):
    shapes = [(2, heads, seqlen_q, 32), *[(2, heads_kv, seqlen_k, 32)] * 2]
    return [torch.randn(shape, device=device).half() for shape in shapes]


def check(got, *given, **options):
    right = of_torch(*(t.double() for t in given), **options)
    torch.testing.assert_close(got.double(), right, rtol=0, atol=2e-3)


@on_each_device
@pytest.mark.parametrize("lengths", [(20, 20), (9, 20), (20, 9)])
def test_torchs_causal_mask_is_aligned_top_left(device, lengths):
    given = tensors(*lengths, device=device)
    check(scaled_dot_product_attention(*given, is_causal=True), *given, is_causal=True)


@on_each_device
def test_torchs_other_arguments(device):
    given = tensors(heads_kv=2, device=device)
    options = {"scale": 0.3, "enable_gqa": True}
    check(scaled_dot_product_attention(*given, **options), *given, **options)
    given, mask = tensors(device=device), torch.rand(20, 20, device=device) < 0.8
    mask[:, 0] = True
    check(scaled_dot_product_attention(*given, mask), *given, attn_mask=mask)


def test_torchs_arguments_that_are_refused():
    given = tensors()
    with pytest.raises(ValueError, match="exclude each other"):
        scaled_dot_product_attention(*given, torch.ones(20, 20, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="need enable_gqa=True"):
        scaled_dot_product_attention(*tensors(heads_kv=2))
    with pytest.raises(ValueError, match=r"query must be \[batch, heads, seqlen, head_dim\]"):
        scaled_dot_product_attention(given[0][0, 0, 0], *given[1:])


@pytest.mark.parametrize("causal", [False, True])
def test_a_value_for_other_keys_is_refused(causal):
    (query, key, _), value = tensors(9, 20), tensors(9, 12)[2]
    with pytest.raises(ValueError, match="key and value must agree in shape"):
        scaled_dot_product_attention(query, key, value, is_causal=causal)


@on_each_device
def test_flash_attentions_layout_and_alignment(device):
    q, k, v = tensors(9, 20, device=device)
    got = spark_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), softmax_scale=0.3, causal=True, deterministic=True)
    mask = torch.ones(9, 20, dtype=torch.bool, device=device).tril(11)
    check(got.transpose(1, 2), q, k, v, attn_mask=mask, scale=0.3)


@on_each_device
def test_heads_of_flash_attentions_result_can_be_joined_by_a_view(device):
    q, k, v = (t.transpose(1, 2).requires_grad_() for t in tensors(device=device))
    joined = spark_attn_func(q, k, v).view(2, 20, 4 * 32)
    assert torch.equal(joined, spark_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2).flatten(2))
    joined.sum().backward()
    assert q.grad.isfinite().all()


def test_flash_attentions_dropout_is_that_of_torchs_seed():
    q, k, v = tensors()
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(spark_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), 0.4).transpose(1, 2))
    torch.manual_seed(3)
    assert torch.equal(*results)
    assert torch.equal(results[0], spark_attention(q, k, v, dropout_p=0.4))


@pytest.mark.parametrize(
    "option",
    [
        {"window_size": (4, 0)},
        {"window_size": None},
        {"softcap": 30.0},
        {"alibi_slopes": torch.ones(4)},
        {"return_attn_probs": True},
    ],
)
def test_flash_attentions_arguments_that_are_refused(option):
    with pytest.raises(NotImplementedError, match=f"does not support {next(iter(option))}"):
        spark_attn_func(*tensors(), **option)


@on_each_device
@each_function
def test_compile_whole(function, device):
    assert_compiles(function, tensors(device=device))


@on_each_device
@each_function
def test_train_under_autocast(function, device):
    assert_autocasts(function, tensors(device=device))


@pytest.mark.gpu
@each_function
def test_are_captured_by_a_cuda_graph(function):
    assert_captured(function, tensors(device="cuda"))
