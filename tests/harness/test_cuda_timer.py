"""CudaTimer's logic on a simulated GPU: a host and a device timeline, so that what is measured is known exactly."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import timers
from harness.timers import HOT_SAMPLE_S, SPIN_HZ, CaptureFailed, CudaTimer

FLUSH_S = 3e-5
LAUNCH_S = 5e-6  # host time of a launch
GRAPH_GAP_S = 2e-6  # device time before a graph's first kernel


class OutOfMemoryError(RuntimeError):
    pass


class SimulatedGpu:
    """Stands for the `torch` and `time` of harness.timers."""

    def __init__(self) -> None:
        self.host = self.device = 1.0
        self.capturing: list[float] | None = None
        self.first_event = math.inf  # device time of the first event since the host last waited
        self.disturbed = False  # whether the host has submitted work after that
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False):
                self.time = 0.0

            def record(self) -> None:
                gpu.submit(1e-6)
                self.time = gpu.device = max(gpu.device, gpu.host)
                gpu.first_event = min(gpu.first_event, self.time)

            def query(self) -> bool:
                return self.time <= gpu.host

            def elapsed_time(self, end: Event) -> float:
                return (end.time - self.time) * 1e3

        class Graph:
            def __init__(self) -> None:
                self.durations: list[float] = []

            def replay(self) -> None:
                gpu.launch(GRAPH_GAP_S + sum(self.durations), 1e-5)

        @contextmanager
        def graph(captured: Graph, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
            gpu.capturing = captured.durations
            try:
                yield
            finally:
                gpu.capturing = None

        stream = SimpleNamespace(synchronize=self.synchronize)
        self.cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=Graph,
            graph=graph,
            current_stream=lambda: stream,
            _sleep=lambda cycles: self.launch(cycles / SPIN_HZ),
        )
        self.OutOfMemoryError = OutOfMemoryError
        self.flush = SimpleNamespace(zero_=lambda: self.launch(FLUSH_S))

    def launch(self, seconds: float, host_s: float = LAUNCH_S) -> None:
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.submit(host_s)
        self.device = max(self.device, self.host) + seconds

    def submit(self, host_s: float) -> None:
        self.host += host_s
        self.disturbed |= self.host > self.first_event

    def synchronize(self) -> None:
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.host = max(self.host, self.device)
        self.first_event = math.inf

    def perf_counter(self) -> float:
        return self.host

    def sleep(self, seconds: float) -> None:
        self.host += seconds


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    simulated = SimulatedGpu()
    monkeypatch.setattr(timers, "torch", simulated)
    monkeypatch.setattr(timers, "time", simulated)
    return simulated


class Call:
    """A call of `kernels` kernels of `kernel_s` each, `host_s` of host time before each."""

    def __init__(self, gpu: SimulatedGpu, kernel_s: float, host_s: float = LAUNCH_S, kernels: int = 1):
        self.gpu, self.kernel_s, self.host_s, self.kernels = gpu, kernel_s, host_s, kernels
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        for _ in range(self.kernels):
            self.gpu.launch(self.kernel_s, self.host_s)
        return {"y": torch.zeros(2)}


@pytest.mark.parametrize("kernel_s", [3e-6, 1e-4, 5e-3])
@pytest.mark.parametrize("host_s", [2e-6, 4e-5, 4e-4])
@pytest.mark.parametrize("captured", [True, False])
def test_the_device_is_timed_whatever_the_host_takes(
    gpu: SimulatedGpu, kernel_s: float, host_s: float, captured: bool
) -> None:
    timer = CudaTimer(Call(gpu, kernel_s, host_s, kernels=3), gpu.flush, "pool" if captured else None)
    timer.warm_up(0.02)
    cold, hot = timer.cold(20), timer.hot(10)
    assert len(cold) == 20
    assert statistics.median(cold) == pytest.approx(3 * kernel_s, rel=0.001)
    assert max(cold) == pytest.approx(3 * kernel_s, rel=0.001)
    assert statistics.median(hot) == pytest.approx(3 * kernel_s, rel=0.01)
    assert timer.hot_method == ("graph" if captured else "backlog")
    assert not timer.host_bound


@pytest.mark.parametrize("kernel_s", [3e-6, 5e-3])
@pytest.mark.parametrize("host_s", [2e-6, 4e-4])
@pytest.mark.parametrize("captured", [True, False])
def test_nothing_is_submitted_while_samples_run(
    gpu: SimulatedGpu, kernel_s: float, host_s: float, captured: bool
) -> None:
    timer = CudaTimer(Call(gpu, kernel_s, host_s), gpu.flush, "pool" if captured else None)
    for take in (timer.cold, timer.hot):
        take(40)  # learns what the host takes
        gpu.disturbed = False
        take(40)
        assert not gpu.disturbed


@pytest.mark.parametrize("captured", [True, False])
def test_a_call_of_more_launches_than_the_queue_holds_is_replayed_cold(gpu: SimulatedGpu, captured: bool) -> None:
    call = Call(gpu, 1e-5, host_s=3e-5, kernels=1000)  # the host needs three times as long as the device
    timer = CudaTimer(call, gpu.flush, "pool" if captured else None)
    assert timer.cold_replays == captured
    calls = call.calls
    cold = timer.cold(10)
    if captured:
        assert cold == pytest.approx([1000 * 1e-5] * 10, rel=0.001)
        assert call.calls == calls
        assert not timer.host_bound
    else:
        assert len(cold) == 10


def test_a_host_that_slows_down_later_is_caught_up_with(gpu: SimulatedGpu) -> None:
    call = Call(gpu, 1e-5)
    timer = CudaTimer(call, gpu.flush, None)
    timer.cold(10)
    call.host_s = 3e-4
    assert max(timer.cold(10)) == pytest.approx(1e-5, rel=0.001)


def test_a_call_that_waits_in_itself_is_flagged_and_not_tried_for_ever(gpu: SimulatedGpu) -> None:
    call = Call(gpu, 1e-5)

    def waits() -> dict[str, Any]:
        outputs = call()
        gpu.synchronize()
        return outputs

    timer = CudaTimer(waits, gpu.flush, None)
    began = gpu.host
    assert len(timer.cold(10)) == 10
    assert timer.host_bound
    calls = call.calls
    timer.cold(10)
    assert call.calls == calls + 11, "once flagged, a batch is taken once"
    assert gpu.host - began < 5


def test_little_time_goes_into_spinning(gpu: SimulatedGpu) -> None:
    """Wall time of a batch: what the host needs and then the device, and a margin."""
    for kernel_s, host_s in ((1e-5, 5e-6), (1e-5, 1e-4), (2e-3, 1e-4)):
        timer = CudaTimer(Call(gpu, kernel_s, host_s), gpu.flush, None)
        timer.cold(20)
        began = gpu.host
        timer.cold(20)
        assert gpu.host - began < 20 * (kernel_s + FLUSH_S + 2.0 * (host_s + 1e-5)) + 1e-3


def test_a_hot_sample_is_long_against_the_gap_between_graphs(gpu: SimulatedGpu) -> None:
    timer = CudaTimer(Call(gpu, 2e-6), gpu.flush, "pool")
    assert timer.hot_sample_s >= HOT_SAMPLE_S * 0.99
    assert statistics.median(timer.hot(5)) == pytest.approx(2e-6, rel=0.02)


def test_outputs_of_a_graph_are_poisoned_and_replayed(gpu: SimulatedGpu) -> None:
    buffer = torch.ones(3)

    def run() -> dict[str, Any]:
        gpu.launch(1e-5)
        return {"y": buffer}

    timer = CudaTimer(run, gpu.flush, "pool")
    assert timer.outputs()["y"].isnan().all(), "the simulated replay writes nothing"


def test_without_memory_for_a_graph_calls_are_timed_behind_a_spin(gpu: SimulatedGpu) -> None:
    call = Call(gpu, 1e-5)

    def run() -> dict[str, Any]:
        if gpu.capturing is not None:
            raise OutOfMemoryError("CUDA out of memory")
        return call()

    assert CudaTimer(run, gpu.flush, "pool").hot_method == "backlog"


def test_what_cannot_be_captured_is_told(gpu: SimulatedGpu) -> None:
    call = Call(gpu, 1e-5)

    def run() -> dict[str, Any]:
        outputs = call()
        gpu.synchronize()
        return outputs

    with pytest.raises(CaptureFailed, match="not permitted"):
        CudaTimer(run, gpu.flush, "pool")


@pytest.mark.parametrize("kernel_s", [1e-5, 3e-3, 0.05])
@pytest.mark.parametrize("pool", ["pool", None])
def test_a_load_keeps_the_device_busy_and_counts_calls(gpu: SimulatedGpu, kernel_s: float, pool: str | None) -> None:
    timer = CudaTimer(Call(gpu, kernel_s), gpu.flush, pool)
    load = timer.load()
    began = gpu.host
    while gpu.host - began < 2:
        before = gpu.host
        load.step()
        assert gpu.host - before < 1e-2
        assert gpu.device > gpu.host, "the device never waits"
    load.stop()
    (first, some), (last, all_) = load.completions[2], load.completions[-1]
    assert (last - first) / (all_ - some) == pytest.approx(kernel_s, rel=0.02)
