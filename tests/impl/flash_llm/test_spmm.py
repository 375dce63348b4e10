"""The product in every format, element by element against float64, by the reference, emulated and on a GPU."""

from __future__ import annotations

import pytest
import torch

from impl.flash_llm.api import spmm
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2, 0.25, 0.5, 0.51, 0.75, 1.0])
def test_every_density(multiply, density):
    w, x = random_sparse(256, 300, density), torch.randn(300, 16).half()
    assert_is_product(multiply(w, x), w, x)


def test_full_tile_among_sparse_ones(multiply, kind):
    rows, columns = kind.tile
    w, x = random_sparse(2 * rows, 2 * columns, 0.1), torch.randn(2 * columns, 8).half()
    w[rows:, :columns] = 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("multiply", [pytest.param("kernel", marks=pytest.mark.gpu)], indirect=True)
def test_large_matrix_half_full(multiply):
    w, x = random_sparse(7168, 7168, 0.5), torch.randn(7168, 8).half()
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", range(1, 11))
def test_every_split_of_k(multiply, kind, split_k):
    """Of ten steps; 640 / 7 is no whole number of them."""
    k = 10 * kind.tile[1]
    w, x = random_sparse(130, k, 0.3), torch.randn(k, 8).half()
    assert_is_product(multiply(w, x, split_k), w, x)


@pytest.mark.parametrize("split_k", [-1, 0, 11])
def test_a_split_without_tiles_is_refused(multiply, kind, split_k):
    k = 10 * kind.tile[1]
    with pytest.raises(ValueError, match=rf"split_k={split_k} must be 1 to 10 for k={k}"):
        multiply(torch.zeros(130, k).half(), torch.randn(k, 8).half(), split_k)


@pytest.mark.parametrize("split_k", [1, 2])
def test_partial_sums_beyond_fp16(multiply, kind, split_k):
    half = kind.tile[1]
    w, x = torch.ones(33, 2 * half).half(), torch.full((2 * half, 8), 70144 / half).half()  # a half sums to 70144
    x[half:] *= -1
    x[0, 3] += 4
    expected = torch.zeros(33, 8).half()
    expected[:, 3] = 4
    assert torch.equal(multiply(w, x, split_k), expected)


@pytest.mark.parametrize("split_k", [None, 1, 5])
def test_long_sums_do_not_saturate(multiply, split_k):
    y = multiply(torch.ones(1, 8192).half(), torch.ones(8192, 8).half(), split_k)
    assert torch.equal(y, torch.full((1, 8), 8192.0).half())


def test_a_product_beyond_fp16_is_infinite(multiply):
    w, x = torch.full((1, 64), 300.0).half(), torch.full((64, 2), 300.0).half()
    x[:, 1] *= -1
    assert multiply(w, x).tolist() == [[torch.inf, -torch.inf]]


@pytest.mark.parametrize(
    ("n", "split_k"), [*((n, 1) for n in (1, 2, 3, 7, 8, 9, 16, 24, 32, 33, 64, 65, 96, 129)), (7, 2), (33, 2), (64, 2)]
)
def test_every_width(multiply, n, split_k):
    w, x = random_sparse(40, 260, 0.3), torch.randn(260, n).half()
    assert_is_product(multiply(w, x, split_k), w, x)


@pytest.mark.parametrize(
    ("m", "k"), [(1, 1), *((m, 65) for m in (1, 127, 128, 129, 384)), *((129, k) for k in (1, 63, 64, 96))]
)
def test_every_remainder_of_m_and_k(multiply, m, k):
    w, x = random_sparse(m, k, 0.4), torch.randn(k, 8).half()
    w[-1], w[:, -1] = 1, 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("m", [1, 32, 33, 65, 96, 545])
def test_rows_of_the_widest_products(multiply, m):
    """A warp may have a whole block of rows, part of one, or none."""
    w, x = random_sparse(m, 200, 0.2), torch.randn(200, 64).half()
    w[-1] = 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("more_rows", [-1, 0, 1])
@pytest.mark.parametrize("more_columns", [-1, 0, 1])
def test_around_a_whole_tile(multiply, kind, more_rows, more_columns):
    m, k = kind.tile[0] + more_rows, kind.tile[1] + more_columns
    w, x = random_sparse(m, k, 0.4), torch.randn(k, 8).half()
    w[-1], w[:, -1] = 1, 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", [1, 2])
def test_nothing_stored(multiply, split_k):
    w, x = torch.zeros(200, 300).half(), torch.randn(300, 9).half()
    assert torch.equal(multiply(w, x, split_k), torch.zeros(200, 9).half())


def test_empty_rows_and_tiles(multiply, kind):
    rows, columns = kind.tile
    w, x = random_sparse(2 * rows, 3 * columns, 0.3), torch.randn(3 * columns, 8).half()
    w[::3] = 0
    w[:rows, columns : 2 * columns] = 0
    w[rows:, : 2 * columns] = 0
    assert_is_product(multiply(w, x), w, x)


def test_odd_counts_of_non_zeros(multiply):
    w, x = torch.zeros(129, 300).half(), torch.randn(300, 8).half()
    w[:, 17] = torch.randn(129)
    w[1::2, 63:65] = torch.randn(64, 2).half()
    w[::4, 255:257] = torch.randn(33, 2).half()
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("k", [32770, 65600])
def test_columns_beyond_sixteen_bits(multiply, k):
    w, x = torch.zeros(1, k).half(), torch.randn(k, 1).half()
    w[0, k - 1] = 1
    assert torch.equal(multiply(w, x), x[-1:])


@pytest.mark.parametrize(("first", "n", "row_stride"), [(1, 8, 9), (3, 16, 33), (8, 16, 40), (2, 7, 10)])
def test_rows_of_x_anywhere(multiply, first, n, row_stride):
    """Views into a wider matrix: unaligned, and strided with the gaps between rows full of NaN."""
    wide = torch.full((300, row_stride), torch.nan).half()
    x = torch.cat([torch.empty(first).half(), wide.flatten()])[first:].as_strided((300, n), (row_stride, 1))
    x.copy_(torch.randn(300, n))
    w = random_sparse(64, 300, 0.3)
    assert_is_product(multiply(w, x), w, x)


def _with_special_values():
    w, x = random_sparse(128, 65, 0.3), torch.randn(65, 8).half()
    w[5, 6], w[7, 64], x[9, 1] = torch.nan, torch.inf, torch.inf
    return w, x


def test_special_values_as_in_a_dense_product(multiply, kind):
    w, x = _with_special_values()
    y, reference = multiply(w, x), w.double() @ x.double()
    rows = w[:, 9] != 0 if kind.name == "two_of_four" else torch.ones(128, dtype=torch.bool)  # see the next test
    assert torch.equal(y[:, 2:].isnan(), reference[:, 2:].isnan())
    assert torch.equal(y[:, 2:].isinf(), reference[:, 2:].isinf())
    assert not y[rows].isfinite().all(1).any()  # the infinity in x meets a zero or a value in every row
    if kind.name != "two_of_four":
        assert torch.equal(y.isnan(), reference.isnan())
        assert torch.equal(y.isinf(), reference.isinf())
    assert_is_product(y[:, 2:][[0, 1, 127]], w[[0, 1, 127]], x[:, 2:])


@pytest.mark.parametrize("kind", ["two_of_four"], indirect=True)
def test_two_of_four_multiplies_few_zeros(multiply):
    """Where W is zero, an infinity in x is either not multiplied, or gives NaN as in a dense product."""
    w, x = _with_special_values()
    zero = (w[:, 9] == 0) & w.isfinite().all(1)
    y = multiply(w, x)[zero, 1:2]
    x[9] = 0
    skipped = (w[zero].double() @ x[:, 1:2].double()).half()
    assert_is_product(torch.where(y.isnan(), skipped, y), w[zero], x[:, 1:2])


def test_subnormal_values_count(multiply):
    w, x = torch.full((1, 64), 2.0**-24).half(), torch.ones(64, 8).half()
    assert torch.equal(multiply(w, x), torch.full((1, 8), 2.0**-18).half())


def test_the_same_bits_every_time(multiply):
    w, x = random_sparse(130, 1280, 0.3), torch.randn(1280, 8).half()
    assert torch.equal(multiply(w, x, 5), multiply(w, x, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [8, 16, 32, 64, 129])
def test_the_same_bits_when_the_gpu_is_full(kind, n):
    """Twenty times: what one warp does too early for another shows in some of them only."""
    weight, x = kind.from_dense(random_sparse(5000, 4100, 0.3).cuda()), torch.randn(4100, n).half().cuda()
    first = spmm(weight, x)
    assert all(torch.equal(spmm(weight, x), first) for _ in range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [8, 33])
def test_op_on_a_gpu(kind, n):
    """As users call it: sizes where the heuristic splits k, captured in a CUDA graph and compiled."""
    w, x = random_sparse(1000, 3000, 0.2), torch.randn(3000, n).half()
    weight, on_gpu = kind.from_dense(w.cuda()), x.cuda()
    assert_is_product(spmm(weight, on_gpu).cpu(), w, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = spmm(weight, on_gpu)
    graph.replay()
    assert_is_product(y.cpu(), w, x)
    compiled = torch.compile(lambda x: spmm(weight, x), fullgraph=True)
    assert_is_product(compiled(on_gpu).cpu(), w, x)


@pytest.mark.gpu
def test_a_graph_needs_no_other_to_run_before_it(kind):
    w, x = random_sparse(1000, 3000, 0.2), torch.randn(3000, 16).half()
    weight, on_gpu, graphs = kind.from_dense(w.cuda()), x.cuda(), []
    torch.cuda.empty_cache()
    for _ in range(2):
        graphs.append((torch.cuda.CUDAGraph(), []))
        with torch.cuda.graph(graphs[-1][0]):
            graphs[-1][1].append(spmm(weight, on_gpu))
    for graph, (y,) in reversed(graphs):
        y.fill_(torch.nan)
        graph.replay()
        assert_is_product(y.cpu(), w, x)
    assert_is_product(spmm(weight, on_gpu).cpu(), w, x)


@pytest.mark.gpu
def test_products_of_a_graph_one_after_the_other(kind):
    """As in a decoding step: they share what the blocks of a tile are counted in."""
    ws, xs = zip(*((random_sparse(m, 3000, 0.2), torch.randn(3000, 16).half()) for m in (1000, 300, 1000)), strict=True)
    weights, on_gpu = [kind.from_dense(w.cuda()) for w in ws], [x.cuda() for x in xs]
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ys = [spmm(weight, x) for weight, x in zip(weights, on_gpu, strict=True)]
        for _ in range(3):
            for y in ys:
                y.fill_(torch.nan)
            graph.replay()
            for y, w, x in zip(ys, ws, xs, strict=True):
                assert_is_product(y.cpu(), w, x)


@pytest.mark.gpu
def test_calls_leave_no_memory_behind(kind):
    weight, x = kind.from_dense(random_sparse(512, 2048, 0.2).cuda()), torch.randn(2048, 8).half().cuda()
    spmm(weight, x)
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        spmm(weight, x)
    assert torch.cuda.memory_allocated() == before
