"""The op's surface: what it refuses, and that it behaves as a PyTorch op."""

from __future__ import annotations

import pytest
import torch

from impl.flash_llm.api import spmm
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse

OP = torch.ops.voltabench.flash_llm_spmm


@pytest.fixture
def weight(kind):
    return kind.from_dense(random_sparse(130, 100, 0.3))


@pytest.mark.parametrize("shape", [(100,), (99, 8), (100, 0), (100, 8, 1)])
def test_other_shapes_are_refused(weight, shape):
    with pytest.raises(ValueError, match=r"x must be \[100, n\]"):
        spmm(weight, torch.randn(shape).half())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_refused(weight, dtype):
    with pytest.raises(TypeError, match="x must be float16"):
        spmm(weight, torch.randn(100, 8).to(dtype))


def test_a_dense_weight_is_refused_with_the_way_to_compress_it():
    with pytest.raises(TypeError, match=r"weight must be compressed, as by Bitmap.from_dense\(w\), not a Tensor"):
        spmm(torch.randn(130, 100).half(), torch.randn(100, 8).half())


def test_another_device_is_refused(weight):
    with pytest.raises(ValueError, match="x is on meta and the weight on cpu"):
        spmm(weight, torch.empty(100, 8, dtype=torch.float16, device="meta"))


def test_columns_of_x_need_not_be_adjacent(weight):
    x = torch.randn(8, 100).half().T
    assert_is_product(spmm(weight, x), weight.to_dense(), x)


def test_op_passes_torchs_checks(weight):
    arguments = (weight.data, weight.offsets, torch.randn(100, 8).half(), 130, weight.name, weight.longest, 1)
    torch.library.opcheck(OP, arguments)


def test_compiles_whole(weight):
    x = torch.randn(100, 8).half()
    compiled = torch.compile(lambda x: spmm(weight, x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), spmm(weight, x))


def test_autocast_casts_x(weight):
    x = torch.randn(100, 8)
    with torch.autocast("cpu", torch.float16):
        y = spmm(weight, x)
    assert torch.equal(y, spmm(weight, x.half()))
