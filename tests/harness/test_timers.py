from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest
import torch

from harness.timers import HOT_SAMPLE_S, CpuTimer, CudaTimer, flush_buffer


class Spy:
    """A call of `seconds`; notes whether the flush buffer was written since the last call."""

    def __init__(self, seconds: float):
        self.seconds, self.flush = seconds, torch.ones(1000, dtype=torch.uint8)
        self.cold: list[bool] = []

    def __call__(self) -> dict[str, torch.Tensor]:
        self.cold.append(bool((self.flush == 0).all()))
        self.flush.fill_(1)
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return {"y": torch.zeros(3)}


def test_cold_samples_are_flushed_before_and_hot_ones_are_not() -> None:
    spy = Spy(1e-3)
    timer = CpuTimer(spy, spy.flush)
    spy.cold.clear()
    cold = timer.cold(5)
    assert spy.cold == [True] * 5
    spy.cold.clear()
    hot = timer.hot(5)
    assert not any(spy.cold)
    assert len(cold) == len(hot) == 5
    assert min(cold) >= 1e-3
    assert min(hot) >= 1e-3


def test_a_hot_sample_of_short_calls_spans_many_and_tells_one() -> None:
    spy = Spy(2e-5)
    timer = CpuTimer(spy, spy.flush)
    spy.cold.clear()
    hot = timer.hot(4)
    assert len(spy.cold) > 4 * HOT_SAMPLE_S / 1e-4 / 10
    assert 2e-5 <= min(hot) < 1e-3


def test_outputs_are_poisoned_before_the_last_call() -> None:
    buffer = torch.ones(4)

    def forgets() -> dict[str, torch.Tensor]:
        buffer[1:] = 1
        return {"y": buffer}

    outputs = CpuTimer(forgets, torch.empty(10, dtype=torch.uint8)).outputs()
    assert outputs["y"].isnan().tolist() == [True, False, False, False]


def test_warm_up_lasts_as_long_as_asked() -> None:
    spy = Spy(1e-3)
    timer = CpuTimer(spy, spy.flush)
    began = time.perf_counter()
    timer.warm_up(0.03)
    assert 0.03 <= time.perf_counter() - began < 0.3


def test_flush_buffer_is_larger_than_the_caches_of_a_core() -> None:
    assert 2**22 <= flush_buffer("cpu").numel() <= 2**26


@pytest.fixture
def side_stream() -> object:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream


def gemm(size: int) -> tuple[object, float]:
    a, b = (torch.randn(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
    c = torch.empty_like(a)

    def run() -> dict[str, torch.Tensor]:
        return {"c": torch.mm(a, b, out=c)}

    run()
    torch.cuda.synchronize()
    return run, 2.0 * size**3


@pytest.mark.gpu
def test_cuda_graph_and_backlog_agree(side_stream: object) -> None:
    run, _ = gemm(4096)  # so long that the gap between two launches, which a graph shortens, is below 1 %
    flush = flush_buffer("cuda")
    graph = CudaTimer(run, flush, torch.cuda.graph_pool_handle())
    backlog = CudaTimer(run, flush, None)
    assert (graph.hot_method, backlog.hot_method) == ("graph", "backlog")
    for timer in (graph, backlog):
        timer.warm_up(0.1)
    turns = [(graph.hot(10), backlog.hot(10)) for _ in range(6)]
    medians = [statistics.median(s for turn in turns for s in turn[i]) for i in range(2)]
    assert medians[0] == pytest.approx(medians[1], rel=0.05)


@pytest.mark.gpu
def test_host_gaps_are_not_measured(side_stream: object) -> None:
    """A call whose host takes 300 us to launch a kernel of a few us must not be timed at 300 us."""
    x = torch.zeros(2**16, device="cuda")

    def slow_host() -> dict[str, torch.Tensor]:
        until = time.perf_counter() + 3e-4
        while time.perf_counter() < until:
            pass
        return {"x": x.add_(1)}

    timer = CudaTimer(slow_host, flush_buffer("cuda"), None)
    assert statistics.median(timer.cold(20)) < 5e-5
    assert statistics.median(timer.hot(5)) < 5e-5
    assert not timer.host_bound


@pytest.mark.gpu
def test_a_call_that_waits_for_the_host_is_flagged_and_ends(side_stream: object) -> None:
    x = torch.zeros(2**10, device="cuda")

    def waits() -> dict[str, torch.Tensor]:
        x.add_(1)
        float(x[0])
        return {"x": x}

    timer = CudaTimer(waits, flush_buffer("cuda"), None)
    assert len(timer.cold(5)) == 5
    assert timer.host_bound


@pytest.mark.gpu
def test_cold_is_slower_than_hot_for_what_fits_in_the_cache(side_stream: object) -> None:
    x = torch.randn(2**21, dtype=torch.float16, device="cuda")
    y = torch.empty_like(x)

    def run() -> dict[str, torch.Tensor]:
        return {"y": torch.neg(x, out=y)}

    timer = CudaTimer(run, flush_buffer("cuda"), torch.cuda.graph_pool_handle())
    assert statistics.median(timer.cold(30)) > 1.1 * statistics.median(timer.hot(30))


@pytest.mark.gpu
def test_backward_is_captured_and_its_outputs_are_those_of_the_replay(side_stream: object) -> None:
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    loss = (x @ x).sum()

    def run() -> dict[str, torch.Tensor]:
        return {"dx": torch.autograd.grad(loss, x, retain_graph=True)[0]}

    right = run()["dx"].clone()
    timer = CudaTimer(run, flush_buffer("cuda"), torch.cuda.graph_pool_handle())
    assert timer.hot_method == "graph"
    timer.hot(3)
    assert torch.equal(timer.outputs()["dx"], right)


@pytest.mark.gpu
def test_load_repeats_at_the_rate_of_the_hot_time(side_stream: object) -> None:
    x = torch.randn(2**25, device="cuda")  # bound by memory: a GEMM of some length would meet the power cap
    y = torch.empty_like(x)
    timer = CudaTimer(lambda: {"y": torch.neg(x, out=y)}, flush_buffer("cuda"), torch.cuda.graph_pool_handle())
    timer.warm_up(0.1)
    load = timer.load()
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        load.step()
    load.stop()
    (first, calls_before), (last, calls) = load.completions[1], load.completions[-1]
    hot = statistics.median(timer.hot(20))
    assert (last - first) / (calls - calls_before) == pytest.approx(hot, rel=0.1)


@pytest.mark.gpu
def test_what_cannot_be_captured_says_so() -> None:
    """In a process of its own: a failed capture spoils torch's allocator."""

    program = """
import torch
from harness.timers import CaptureFailed, CudaTimer, flush_buffer
torch.cuda.set_stream(torch.cuda.Stream())
x = torch.ones(4, device="cuda")
def waits():
    torch.cuda.synchronize()
    return {"x": x + 1}
try:
    CudaTimer(waits, flush_buffer("cuda"), torch.cuda.graph_pool_handle())
except CaptureFailed:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "refused" in done.stdout, done.stderr
