"""The bitmap product, element by element against float64, by the reference, the emulated kernel and on a GPU."""

from __future__ import annotations

import functools

import pytest
import torch

from impl.cuda import emulator
from impl.flash_llm import reference
from impl.flash_llm.bitmap import Bitmap
from impl.flash_llm.kernels import bitmap
from tests.impl.flash_llm.conftest import guarded, to_cuda
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse

A100 = bitmap.Device(sm_count=4, shared_bytes_per_sm=167936, shared_bytes_per_block=166912)
H200 = bitmap.Device(sm_count=132, shared_bytes_per_sm=233472, shared_bytes_per_block=232448)
OPT_LAYERS = [(21504, 7168), (7168, 7168), (28672, 7168), (7168, 28672), (49152, 12288), (12288, 49152)]


@pytest.fixture(params=["reference", "emulated", pytest.param("kernel", marks=pytest.mark.gpu)])
def multiply(request):
    """`multiply(w, x, split_k=None)` gives Y [m, n] on the CPU, by the backend the test is run for."""
    if request.param == "reference":
        return _by_reference
    if request.param == "emulated":
        if reason := emulator.available():
            pytest.skip(reason)
        return functools.partial(_by_kernel, functools.partial(emulator.launch, check_races=True), A100)
    from impl.cuda.launch import launch

    device = _this_gpu()
    return lambda w, x, split_k=None: _by_kernel(guarded(launch), device, w.cuda(), to_cuda(x), split_k).cpu()


def _by_reference(w, x, split_k=None):
    weight = Bitmap.from_dense(w)
    return reference.spmm_bitmap(weight.lines, weight.offsets, x, len(w), _plan(weight, x, A100, split_k).split_k)


def _by_kernel(launch, device, w, x, split_k=None):
    weight = Bitmap.from_dense(w)
    return bitmap.multiply(weight.lines, weight.offsets, x, len(w), _plan(weight, x, device, split_k), launch)


def _plan(weight, x, device, split_k=None):
    m, k = weight.shape
    return bitmap.choose_plan(m, x.shape[1], k, weight.nbytes, weight.densest, device, split_k)


def _this_gpu():
    properties = torch.cuda.get_device_properties(0)
    return bitmap.Device(
        properties.multi_processor_count,
        properties.shared_memory_per_multiprocessor,
        properties.shared_memory_per_block_optin,
    )


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2, 0.5, 0.51, 0.75, 1.0])
def test_every_density(multiply, density):
    w, x = random_sparse(128, 300, density), torch.randn(300, 16).half()
    assert_is_product(multiply(w, x), w, x)


def test_full_block_among_sparse_ones(multiply):
    w, x = random_sparse(128, 512, 0.1), torch.randn(512, 8).half()
    w[32:64, 256:] = 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("multiply", [pytest.param("kernel", marks=pytest.mark.gpu)], indirect=True)
def test_large_matrix_half_full(multiply):
    w, x = random_sparse(7168, 7168, 0.5), torch.randn(7168, 8).half()
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", range(1, 6))
def test_every_split_of_k(multiply, split_k):
    w, x = random_sparse(130, 1100, 0.3), torch.randn(1100, 8).half()
    assert_is_product(multiply(w, x, split_k), w, x)


@pytest.mark.parametrize("split_k", [-1, 0, 4])
def test_a_split_without_segments_is_refused(multiply, split_k):
    with pytest.raises(ValueError, match=rf"split_k={split_k} must be 1 to 3"):
        multiply(torch.zeros(130, 640).half(), torch.randn(640, 8).half(), split_k)


@pytest.mark.parametrize("split_k", [1, 2])
def test_partial_sums_beyond_fp16(multiply, split_k):
    w = torch.ones(33, 512).half()
    x = torch.full((512, 8), 274.0).half()  # 256 of them sum to 70144
    x[256:] *= -1
    x[0, 3] += 2
    expected = torch.zeros(33, 8).half()
    expected[:, 3] = 2
    assert torch.equal(multiply(w, x, split_k), expected)


@pytest.mark.parametrize("split_k", [None, 1])
def test_long_sums_do_not_saturate(multiply, split_k):
    y = multiply(torch.ones(1, 8192).half(), torch.ones(8192, 8).half(), split_k)
    assert torch.equal(y, torch.full((1, 8), 8192.0).half())


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16, 24, 32, 33, 64, 65, 96, 129])
def test_every_width(multiply, n):
    w, x = random_sparse(40, 260, 0.3), torch.randn(260, n).half()
    assert_is_product(multiply(w, x, split_k=1 + n % 2), w, x)


@pytest.mark.parametrize("m", [1, 31, 32, 127, 128, 129])
@pytest.mark.parametrize("k", [1, 63, 255, 256, 257])
def test_every_remainder_of_m_and_k(multiply, m, k):
    w, x = random_sparse(m, k, 0.4), torch.randn(k, 8).half()
    w[-1], w[:, -1] = 1, 1
    assert_is_product(multiply(w, x), w, x)


@pytest.mark.parametrize("split_k", [1, 2])
def test_nothing_stored(multiply, split_k):
    w, x = torch.zeros(200, 300).half(), torch.randn(300, 9).half()
    assert torch.equal(multiply(w, x, split_k), torch.zeros(200, 9).half())


def test_empty_rows_and_blocks(multiply):
    w, x = random_sparse(160, 600, 0.3), torch.randn(600, 8).half()
    w[::3] = 0
    w[:32, 256:512] = 0
    w[96:, :256] = 0
    assert_is_product(multiply(w, x), w, x)


def test_odd_counts_of_non_zeros(multiply):
    w, x = torch.zeros(129, 300).half(), torch.randn(300, 8).half()
    w[:, 17] = torch.randn(129)
    w[1::2, 255:257] = torch.randn(64, 2).half()
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


def test_special_values_as_in_a_dense_product(multiply):
    w, x = random_sparse(128, 65, 0.3), torch.randn(65, 8).half()
    w[5, 6], w[7, 64], x[9, 1] = torch.nan, torch.inf, torch.inf
    y, product = multiply(w, x), w.double() @ x.double()
    assert torch.equal(y.isnan(), product.isnan())
    assert torch.equal(y.isinf(), product.isinf())
    assert_is_product(y[:, 2:][[0, 1, 127]], w[[0, 1, 127]], x[:, 2:])


def test_subnormal_values_count(multiply):
    w, x = torch.full((1, 64), 2.0**-24).half(), torch.ones(64, 8).half()
    assert torch.equal(multiply(w, x), torch.full((1, 8), 2.0**-18).half())


def test_the_same_bits_every_time(multiply):
    w, x = random_sparse(128, 640, 0.3), torch.randn(640, 8).half()
    assert torch.equal(multiply(w, x, 3), multiply(w, x, 3))


@pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
@pytest.mark.parametrize(("n", "warps"), bitmap.SPMM)
def test_no_bank_conflicts_and_few_reads(n, warps):
    """No access of shared memory conflicts, and a warp reads at most one word per pair of elements and its bits."""
    weight, x = Bitmap.from_dense(random_sparse(32, 512, 0.2)), torch.randn(512, n).half()
    plan = bitmap.Plan(n, warps, split_k=1, stage_lines=weight.densest)
    counts = []
    bitmap.multiply(weight.lines, weight.offsets, x, 32, plan, lambda *call: counts.extend(emulator.count(*call)))
    shared = [count for count in counts if count.wavefronts]
    assert all(count.wavefronts == count.ideal_wavefronts for count in shared)
    reads = sum(count.wavefronts for count in shared if count.instruction == "ld.shared")
    assert 2 * 8 < reads <= 2 * (8 + 128)


@pytest.mark.parametrize(("n", "tile_n"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64), (129, 64)])
def test_narrowest_tile_that_holds_n(n, tile_n):
    assert bitmap.choose_plan(128, n, 256, 128 * 50, 50, A100).tile_n == tile_n


@pytest.mark.parametrize(("n", "lines", "warps"), [(8, 50, 8), (16, 50, 4), (32, 50, 8), (64, 50, 8), (16, 92, 8)])
def test_the_number_of_warps_that_puts_more_on_an_sm(n, lines, warps):
    """228 KiB an SM: at n = 8 two blocks of 8 warps or three of 4, at n = 16 one of 8 or three of 4."""
    assert bitmap.choose_plan(7168, n, 7168, 7168 * 7168, lines, H200).warps == warps
    assert bitmap.choose_plan(128, n, 7168, 128 * 7168, lines, H200).warps == 4


def test_a_dense_weight_takes_a_narrower_tile_or_is_refused():
    assert bitmap.choose_plan(128, 64, 256, 128 * 136 * 4, 136, A100).tile_n == 16
    with pytest.raises(ValueError, match="a block of W has 136 lines; 2 stages of them take 147456 bytes"):
        bitmap.choose_plan(128, 64, 256, 128 * 136 * 4, 136, bitmap.Device(80, 102400, 101376))


@pytest.mark.parametrize(("m", "k"), OPT_LAYERS)
@pytest.mark.parametrize("n", [8, 16, 32])
def test_a_layer_fills_the_machine(m, k, n):
    """At least seven tenths of the block slots are taken, averaged over the waves, at 80 % zeros."""
    plan = bitmap.choose_plan(m, n, k, int(0.64 * m * k), 50, H200)
    slots = H200.sm_count * bitmap.resident_blocks(plan.tile_n, plan.warps, 50, H200)
    blocks = m // (32 * plan.warps) * plan.split_k
    assert blocks / (-(-blocks // slots) * slots) >= 0.7


@pytest.mark.gpu
def test_calls_leave_no_memory_behind():
    from impl.cuda.launch import launch

    w, x = random_sparse(512, 2048, 0.2).cuda(), torch.randn(2048, 8).half().cuda()
    weight = Bitmap.from_dense(w)
    plan = _plan(weight, x, _this_gpu())
    bitmap.multiply(weight.lines, weight.offsets, x, 512, plan, launch)
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        bitmap.multiply(weight.lines, weight.offsets, x, 512, plan, launch)
    assert torch.cuda.memory_allocated() == before
