"""Sparse matrices and the bound that a product of fp16 matrices, summed in fp32, must keep."""

from __future__ import annotations

import torch


def random_sparse(m, k, density):
    return torch.randn(m, k).half().masked_fill_(torch.rand(m, k) >= density, 0)


def assert_is_product(y, w, x):
    """Every element within K 2^-24 sum |w| |x| (fp32 sums) + 2^-11 |y| (rounding to fp16) + 2^-25 of float64's."""
    reference = w.double() @ x.double()
    magnitude = w.double().abs() @ x.double().abs()
    bound = w.shape[1] * 2.0**-24 * magnitude + 2.0**-11 * reference.abs() + 2.0**-25
    assert y.dtype == torch.float16
    assert y.shape == reference.shape
    worst = ((y.double() - reference).abs() / bound).nan_to_num(nan=torch.inf).max()
    assert worst <= 1, f"{worst:.3g} times the bound"


def bits(matrix):
    return matrix.contiguous().view(torch.int16)
