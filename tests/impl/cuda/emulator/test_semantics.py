"""What barriers, shuffles, atomics and arithmetic give, on the emulator and on a GPU, against plain Python."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest
import torch

from impl.cuda import emulator


def test_shuffles_and_votes(launch, test_kernel):
    values = torch.randint(-1000, 1000, (64,), dtype=torch.int32)
    results = torch.full((64, 12), -1, dtype=torch.int32)
    launch(test_kernel("warp.cu", "exchange", 64, "sm_70"), (1, 1, 1), [values, results])
    for thread in range(64):
        assert results[thread].tolist() == _exchange(values.tolist()[thread // 32 * 32 :][:32], thread % 32)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="elect needs sm_90 or newer"
)
def test_one_lane_of_a_warp_is_elected_and_always_the_same(launch, test_kernel):
    elected = torch.full((2, 3, 32), -1, dtype=torch.int32)
    launch(test_kernel("elect.cu", "elect", 96, "sm_90a"), (1, 1, 1), [elected])
    assert (elected.sum(2) == 1).all()
    assert torch.equal(elected[0], elected[1])


def _exchange(values: list[int], lane: int) -> list[int]:
    def segment(width: int) -> int:
        return lane // width * width

    ballot = sum(1 << i for i, value in enumerate(values) if value > 0)
    return [
        values[(lane * 5 + 3) % 32],
        values[segment(8) + (lane * 5 + 3) % 8],
        values[lane - 3 if lane >= 3 else lane],
        values[lane - 3 if lane - 3 >= segment(16) else lane],
        values[lane + 5 if lane + 5 < 32 else lane],
        values[lane + 5 if lane + 5 < segment(8) + 8 else lane],
        values[lane ^ 9],
        int(np.uint32(ballot).astype(np.int32)),
        int(any(value > 900 for value in values)),
        int(all(value > -900 for value in values)),
        (values[lane ^ 1] * 0x100000001 >> 32),
        values[lane ^ 4] if lane < 8 else values[31],
    ]


def test_atomics(launch, test_kernel):
    blocks, threads = 5, 96
    values = torch.randint(-100, 100, (blocks, threads), dtype=torch.int32)
    sums = torch.tensor([0, -(2**31), 2**31 - 1], dtype=torch.int32)
    float_sum, arrivals = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    order = torch.full((blocks * threads,), -1, dtype=torch.int32)
    kernel = test_kernel("atomics.cu", "add_up", threads, "sm_70")
    launch(kernel, (blocks, 1, 1), [values, sums, float_sum, arrivals, order])
    totals = values.sum(1)
    assert sums.tolist() == [totals.sum(), totals.max(), totals.min()]
    assert float_sum.item() == totals.sum()
    assert sorted(order.tolist()) == list(range(blocks * threads))


def _order(test_kernel, seed: int, blocks: int = 1) -> list[int]:
    values, sums, arrivals = (torch.zeros(n, dtype=torch.int32) for n in (96 * blocks, 3, 1))
    order = torch.full((96 * blocks,), -1, dtype=torch.int32)
    kernel = test_kernel("atomics.cu", "add_up", 96, "sm_70")
    emulator.launch(kernel, (blocks, 1, 1), [values, sums, torch.zeros(1), arrivals, order], seed=seed)
    return order.tolist()


def test_the_seed_orders_threads(test_kernel):
    orders = [_order(test_kernel, seed) for seed in range(5)]
    assert len(set(map(tuple, orders))) == 5
    assert _order(test_kernel, 3) == orders[3]


def test_the_seed_orders_blocks(test_kernel, monkeypatch):
    monkeypatch.setenv("VOLTABENCH_EMULATOR_DEBUG", "1")  # one block after the other
    orders = [[thread // 96 for thread in _order(test_kernel, seed, blocks=8)[::96]] for seed in range(3)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len(set(map(tuple, orders))) == 3


def _relay(launch, test_kernel, full: str, empty: str) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.randint(0, 1000, (4, 32), dtype=torch.int32)
    sums = torch.full((64,), -1, dtype=torch.int32)
    kernel = test_kernel("named_barrier.cu", "relay", 96, "sm_70", ROUNDS=4, FULL=full, EMPTY=empty)
    launch(kernel, (1, 1, 1), [source, sums])
    totals = source.sum(0)
    return sums, torch.cat([totals.roll(-1), totals.roll(-2)])


def test_named_barriers(launch, test_kernel):
    sums, expected = _relay(launch, test_kernel, "named_barrier_arrive(1, 96)", "named_barrier_sync(2, 96)")
    assert torch.equal(sums, expected)


@pytest.mark.parametrize(
    ("full", "empty", "message"),
    [
        ("named_barrier_arrive(1, 96)", "", "race at shared byte"),
        ("named_barrier_arrive(3, 96)", "named_barrier_sync(2, 96)", "64 at a named barrier"),
        ("named_barrier_arrive(1, 64)", "named_barrier_sync(2, 96)", "divergence at a named barrier"),
        ("named_barrier_arrive(1, 90)", "named_barrier_sync(2, 96)", "whole warps"),
        ("named_barrier_arrive(16, 96)", "named_barrier_sync(2, 96)", "named barriers are 1 to 15"),
    ],
)
def test_faulty_named_barriers(test_kernel, full, empty, message):
    with pytest.raises(emulator.EmulatedFault, match=message):
        _relay(functools.partial(emulator.launch, check_races=True), test_kernel, full, empty)


def _halves(n: int) -> np.ndarray:
    """Random bit patterns: every exponent, subnormals, infinities and NaN among them."""
    return np.random.default_rng().integers(0, 1 << 16, n, dtype=np.uint16).view(np.float16)


def test_half_arithmetic_rounds_once(launch, test_kernel):
    n = 4096
    a, b, c = _halves(n), _halves(n), _halves(n)
    # Ties and near ties of the fused multiply-add: c is half a unit in the last place of the product, or close to it.
    a[:512] = 1 + np.random.default_rng().integers(0, 1024, 512) / 1024
    b[:512] = np.random.default_rng().choice([1, 1 + 2**-10, 1.5], 512)
    c[:512] = np.random.default_rng().choice([2**-11, -(2**-11), 2**-24, -(2**-24), 2**-12], 512)
    x = np.concatenate([_halves(n // 2).astype(float), np.random.default_rng().normal(size=n // 2)])
    with np.errstate(invalid="ignore"):
        x = (x * (1 + np.random.default_rng().choice([0, 2**-11, 2**-12, 2**-20], n))).astype(np.float32)
    results = torch.full((6, n), float("nan"), dtype=torch.half)
    tensors = [torch.from_numpy(array) for array in (a, b, c, x)]
    launch(test_kernel("half.cu", "arithmetic", 128, "sm_70"), (n // 128, 1, 1), [*tensors, results, np.int32(n)])
    with np.errstate(all="ignore"):
        # numpy forms these in float32 and rounds again, which for fp16 is the same as rounding the exact result.
        expected = [a + b, a * b, _fused(a, b, c), x.astype(np.float16), _fused(a, b, c), b - a]
    for name, result, wanted in zip(("add", "mul", "fma", "convert", "fma2", "sub2"), results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), wanted, err_msg=name)


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.array([_fused_one(*map(float, triple)) for triple in zip(a, b, c, strict=True)], dtype=np.float16)


def _fused_one(a: float, b: float, c: float) -> np.float16:
    if not all(map(np.isfinite, (a, b, c))):
        return np.float16(np.float64(a) * b + c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return np.float16(a * b + c)
    guess = np.float16(float(exact))
    candidates = [np.nextafter(guess, np.float16(-np.inf)), guess, np.nextafter(guess, np.float16(np.inf))]

    def distance(candidate: np.float16) -> tuple[Fraction, int]:
        # An infinity stands for the next power of two when rounding (IEEE 754); on a tie the even one wins.
        value = Fraction(float(candidate)) if np.isfinite(candidate) else Fraction(65536 if candidate > 0 else -65536)
        return abs(value - exact), int(candidate.view(np.uint16) & 1)

    return min(candidates, key=distance)


@pytest.mark.parametrize("function", ["exp2_fast", "log2_fast", "reciprocal_fast"])
def test_special_functions(launch, test_kernel, function):
    """Within the errors that the PTX ISA documents for ex2, lg2 and rcp, and their values at the ends of the range."""
    n = 1024
    x = torch.randn(n) * 20 if function == "exp2_fast" else torch.randn(n).exp2()
    x[:3] = torch.tensor([0.0, float("inf"), 2.0**-140])
    y = torch.full((n,), float("nan"))
    launch(test_kernel("special.cu", "special", 128, "sm_70", FUNCTION=function), (n // 128, 1, 1), [x, y])
    ends, exact, error = {
        "exp2_fast": ([1.0, np.inf, 1.0], x.double().exp2(), x.double().exp2() * (2**-22 * 1.16)),
        "log2_fast": ([-np.inf, np.inf, -np.inf], x.double().log2(), x.double().log2().abs() * 2**-21.9 + 2**-22),
        "reciprocal_fast": ([np.inf, 0.0, np.inf], 1 / x.double(), 1 / x.double().abs() * 2**-22.9),
    }[function]
    assert y[:3].tolist() == ends
    assert ((y.double() - exact).abs() <= error)[3:].all()
