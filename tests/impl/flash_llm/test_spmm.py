"""The product, element by element against float64, by the reference, the emulated kernel and the kernel on a GPU."""

from __future__ import annotations

import pytest
import torch

from impl.flash_llm.api import flash_llm_spmm
from impl.flash_llm.formats import TiledCSL
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2, 0.25, 0.5, 0.51, 0.75, 1.0])
def test_every_density(multiply, density):
    w, x = random_sparse(256, 192, density), torch.randn(192, 16).half()
    assert_is_product(multiply(w, x), w, x)


def test_full_tile_among_sparse_ones(multiply):
    w, x = random_sparse(256, 64, 0.1), torch.randn(64, 8).half()
    w[:128] = 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("multiply", ["reference", pytest.param("kernel", marks=pytest.mark.gpu)], indirect=True)
def test_large_matrix_half_full(multiply):
    w, x = random_sparse(7168, 7168, 0.5), torch.randn(7168, 8).half()
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", range(1, 11))
def test_every_split_of_k(multiply, split_k):
    w, x = random_sparse(130, 640, 0.3), torch.randn(640, 8).half()
    assert_is_product(multiply(w, x, split_k), w, x)


@pytest.mark.parametrize("split_k", [-1, 0, 11])
def test_a_split_without_tiles_is_refused(multiply, split_k):
    with pytest.raises(ValueError, match=rf"split_k={split_k} must be 1 to 10"):
        multiply(torch.zeros(130, 640).half(), torch.randn(640, 8).half(), split_k)


@pytest.mark.parametrize("split_k", [1, 2])
def test_partial_sums_beyond_fp16(multiply, split_k):
    w = torch.ones(128, 128).half()
    x = torch.full((128, 8), 1094.0).half()  # 64 of them sum to 70016
    x[64:] *= -1
    x[0, 3] += 3
    y = multiply(w, x, split_k)
    expected = torch.zeros(128, 8).half()
    expected[:, 3] = 3
    assert torch.equal(y, expected)


@pytest.mark.parametrize("split_k", [None, 1, 5])
def test_long_sums_do_not_saturate(multiply, split_k):
    y = multiply(torch.ones(1, 8192).half(), torch.ones(8192, 8).half(), split_k)
    assert torch.equal(y, torch.full((1, 8), 8192.0).half())


def test_a_product_beyond_fp16_is_infinite(multiply):
    w, x = torch.full((1, 64), 300.0).half(), torch.full((64, 2), 300.0).half()
    x[:, 1] *= -1
    assert multiply(w, x).tolist() == [[torch.inf, -torch.inf]]


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16, 24, 32, 33, 64, 65, 96, 129])
def test_every_width(multiply, n, split_k):
    w, x = random_sparse(128, 128, 0.3), torch.randn(128, n).half()
    assert_is_product(multiply(w, x, split_k), w, x)


@pytest.mark.parametrize("m", [1, 127, 128, 129, 384])
@pytest.mark.parametrize("k", [1, 63, 64, 65, 96])
def test_every_remainder_of_m_and_k(multiply, m, k):
    w, x = random_sparse(m, k, 0.4), torch.randn(k, 8).half()
    w[-1], w[:, -1] = 1, 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", [1, 3])
def test_nothing_stored(multiply, split_k):
    w, x = torch.zeros(200, 192).half(), torch.randn(192, 9).half()
    assert torch.equal(multiply(w, x, split_k), torch.zeros(200, 9).half())


def test_empty_rows_and_tiles(multiply):
    w, x = random_sparse(256, 192, 0.3), torch.randn(192, 8).half()
    w[::3] = 0
    w[:128, 64:128] = 0
    w[128:, :128] = 0
    assert_is_product(multiply(w, x), w, x)


def test_odd_counts_of_non_zeros(multiply):
    w, x = torch.zeros(129, 100).half(), torch.randn(100, 8).half()
    w[:, 17] = torch.randn(129)
    w[1::2, 63:65] = torch.randn(64, 2).half()
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("k", [32770, 65600])
def test_columns_beyond_sixteen_bits(multiply, k):
    w, x = torch.zeros(1, k).half(), torch.randn(k, 1).half()
    w[0, k - 1] = 1
    assert torch.equal(multiply(w, x), x[-1:])


@pytest.mark.parametrize(("first", "n", "row_stride"), [(1, 8, 9), (3, 16, 33), (8, 16, 40), (2, 7, 10)])
def test_rows_of_x_anywhere(multiply, first, n, row_stride):
    """Views into a wider matrix: unaligned, and strided with the gaps between rows full of NaN."""
    wide = torch.full((100, row_stride), torch.nan).half()
    x = torch.cat([torch.empty(first).half(), wide.flatten()])[first:].as_strided((100, n), (row_stride, 1))
    x.copy_(torch.randn(100, n))
    w = random_sparse(128, 100, 0.3)
    assert_is_product(multiply(w, x), w, x)


def test_special_values_as_in_a_dense_product(multiply):
    w, x = random_sparse(128, 65, 0.3), torch.randn(65, 8).half()
    w[5, 6], w[7, 64], x[9, 1] = torch.nan, torch.inf, torch.inf
    y, reference = multiply(w, x), w.double() @ x.double()
    assert torch.equal(y.isnan(), reference.isnan())
    assert torch.equal(y.isinf(), reference.isinf())
    finite = reference.isfinite().all(1)
    assert not finite.any()  # the infinity in x meets a zero or a value in every row
    assert_is_product(y[:, 2:][[0, 1, 127]], w[[0, 1, 127]], x[:, 2:])


def test_subnormal_values_count(multiply):
    w, x = torch.full((1, 64), 2.0**-24).half(), torch.ones(64, 8).half()
    assert torch.equal(multiply(w, x), torch.full((1, 8), 2.0**-18).half())


def test_the_same_bits_every_time(multiply):
    w, x = random_sparse(256, 640, 0.3), torch.randn(640, 8).half()
    assert torch.equal(multiply(w, x, 5), multiply(w, x, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [8, 33])
def test_op_on_a_gpu(n):
    """As users call it: sizes where the heuristic splits k, captured in a CUDA graph and compiled."""
    w, x = random_sparse(1000, 3000, 0.2), torch.randn(3000, n).half()
    weight, on_gpu = TiledCSL.from_dense(w.cuda()), x.cuda()
    assert_is_product(flash_llm_spmm(weight, on_gpu).cpu(), w, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = flash_llm_spmm(weight, on_gpu)
    graph.replay()
    assert_is_product(y.cpu(), w, x)
    compiled = torch.compile(lambda x: flash_llm_spmm(weight, x), fullgraph=True)
    assert_is_product(compiled(on_gpu).cpu(), w, x)


@pytest.mark.gpu
def test_calls_leave_no_memory_behind():
    weight, x = TiledCSL.from_dense(random_sparse(512, 2048, 0.2).cuda()), torch.randn(2048, 8).half().cuda()
    flash_llm_spmm(weight, x)
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        flash_llm_spmm(weight, x)
    assert torch.cuda.memory_allocated() == before
