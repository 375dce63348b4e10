"""How one call is timed: `cold` with the caches flushed before each sample, `hot` with the same buffers back to back.

On a GPU both are read from CUDA events, and the host must not be what they measure: it enqueues each batch behind a
spin kernel that lasts until all of it is enqueued. The device then never waits for the host, nor is it disturbed by it:
work submitted while a kernel runs makes that kernel 0.6 us longer. `hot` replays a CUDA graph of many calls. Everything
runs on the current stream, which must not be the default one: autograd's backward could not be captured there.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.lazy import lazy_import
from harness.verify import poison, poisoned_call

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

Run = Callable[[], "dict[str, Tensor]"]

HOT_SAMPLE_S = 5e-4  # a hot sample spans at least this: a thousand ticks of an event, and a launch is below 1 % of it
BACKLOG_SAMPLE_S = 1e-4  # the same without a graph: nothing lies between the calls, and they must fit the launch queue
MAX_CALLS = 100  # of one hot sample, and of one graph
PRIMED_S = 1e-3  # shorter calls get one untimed call per batch, as another contender ran before
CPU_FLUSH_BYTES = 2**26  # at most; CPU times are for smoke runs and need not cost more
SPIN_HZ = 2e9  # cycles of torch.cuda._sleep per second, at most; a slower clock only spins longer
SPIN_LIMIT_S = 0.05  # a call that needs more to stay ahead of the device waits for the host in itself
QUEUE_S = 4e-3  # host time of what is enqueued at once: CUDA's launch queue holds about 1,000 launches of 4 us
REPLAY_S = 3e-5  # host time of a graph's replay
LOAD_CHUNK_S = 5e-3


class Timer(Protocol):
    """Times one contender's call. Estimates are for planning batches only."""

    hot_method: str
    host_bound: bool  # a call waits for the host in itself, so that its times include the host's
    cold_replays: bool  # cold samples replay a graph of the call
    cold_sample_s: float  # estimated wall time of one cold sample, flush included
    hot_sample_s: float  # estimated wall time of one hot sample

    def warm_up(self, seconds: float) -> None: ...
    def cold(self, count: int) -> list[float]:
        """`count` samples, s per call."""

    def hot(self, count: int) -> list[float]:
        """`count` samples, s per call."""

    def outputs(self) -> dict[str, Tensor]:
        """What the timed calls leave, poisoned before one more call."""


class CpuTimer:
    """perf_counter around calls; the caches are flushed by writing a buffer."""

    hot_method = "loop"
    host_bound = cold_replays = False

    def __init__(self, run: Run, flush: Tensor):
        self._run, self._flush = run, flush
        call_s = self._time(1)
        began = time.perf_counter()
        flush.zero_()
        self.cold_sample_s = call_s + time.perf_counter() - began
        self._calls = _calls_in(HOT_SAMPLE_S, call_s)
        self.hot_sample_s = self._calls * call_s
        self._call_s = call_s

    def warm_up(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._run()

    def cold(self, count: int) -> list[float]:
        self._prime()
        return [self._time_flushed() for _ in range(count)]

    def hot(self, count: int) -> list[float]:
        self._prime()
        return [self._time(self._calls) / self._calls for _ in range(count)]

    def outputs(self) -> dict[str, Tensor]:
        return poisoned_call(self._run)

    def _prime(self) -> None:
        if self._call_s < PRIMED_S:
            self._run()

    def _time_flushed(self) -> float:
        self._flush.zero_()
        return self._time(1)

    def _time(self, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            outputs = self._run()
        ended = time.perf_counter()
        del outputs  # only now: freeing them is no part of the call
        return ended - began


class CaptureFailed(RuntimeError):
    """A call cannot be captured. torch's allocator is left in the middle of the capture, so this process must end."""


class CudaTimer:
    """CUDA events around calls on the current stream.

    `graph_pool`: memory shared by the graphs of one case, or None where the call is not to be captured.
    A call of more launches than CUDA's queue holds cannot be enqueued whole: cold samples then replay its graph too.
    Raises CaptureFailed when the call turns out not to be capturable.
    """

    def __init__(self, run: Run, flush: Tensor, graph_pool: Any):
        self._run, self._flush = run, flush
        self._graph: Any = None
        self._graph_outputs: dict[str, Tensor] = {}
        self._graph_calls = 1
        self._host_bound: set[str] = set()  # metrics
        host_s = self._estimate()
        if graph_pool is not None:
            self._capture(graph_pool)
        self.hot_method = "graph" if self._graph else "backlog"
        if self._graph:
            self._repeats = _calls_in(HOT_SAMPLE_S, self._call_s * self._graph_calls)
        else:  # as many as the host can enqueue behind one spin
            self._repeats = _calls_in(BACKLOG_SAMPLE_S, self._call_s, most=max(1, int(SPIN_LIMIT_S / 4 / host_s)))
        self.hot_sample_s = self._repeats * self._graph_calls * self._call_s
        self.cold_replays = self._graph is not None and self._graph_calls == 1 and host_s > QUEUE_S
        # Host time to enqueue one sample; raised whenever the device catches up with the host.
        self._host_s = {
            "cold": REPLAY_S if self.cold_replays else host_s,
            "hot": self._repeats * (REPLAY_S if self._graph else host_s),
        }

    @property
    def host_bound(self) -> bool:
        return bool(self._host_bound)

    def warm_up(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._repeat(_calls_in(seconds / 4, self._call_s))
            _synchronize()

    def cold(self, count: int) -> list[float]:
        def sample() -> tuple[Any, Any]:
            self._flush.zero_()
            return _between_events(self._graph.replay if self.cold_replays else self._run)

        return self._batch("cold", sample, count)

    def hot(self, count: int) -> list[float]:
        def sample() -> tuple[Any, Any]:
            return _between_events(self._advance)

        per_call = self._repeats * self._graph_calls
        return [s / per_call for s in self._batch("hot", sample, count)]

    def outputs(self) -> dict[str, Tensor]:
        if self._graph is None:
            return poisoned_call(self._run)
        poison(self._graph_outputs)
        self._graph.replay()
        _synchronize()
        return self._graph_outputs

    def load(self) -> CudaLoad:
        """The call repeated without a pause, for the energy pass."""
        return CudaLoad(self._advance, self._repeats * self._graph_calls, _calls_in(LOAD_CHUNK_S, self.hot_sample_s))

    def _advance(self) -> None:
        """The calls of one hot sample."""
        if self._graph is None:
            self._repeat(self._repeats)
            return
        for _ in range(self._repeats):
            self._graph.replay()

    def _repeat(self, calls: int) -> None:
        for _ in range(calls):
            self._run()

    def _batch(self, metric: str, sample: Callable[[], tuple[Any, Any]], count: int) -> list[float]:
        seconds: list[float] = []
        while len(seconds) < count:
            fit = count if metric in self._host_bound else max(1, int(QUEUE_S / self._host_s[metric]))
            seconds += self._backlog(metric, sample, min(fit, count - len(seconds)))
        return seconds

    def _backlog(self, metric: str, sample: Callable[[], tuple[Any, Any]], count: int) -> list[float]:
        """Samples enqueued behind a spin kernel; again, behind a longer one, if it ended before the host was done."""
        while True:
            spin_s = 1e-4 + count * self._host_s[metric]
            if spin_s > SPIN_LIMIT_S:
                self._host_bound.add(metric)
            if self._call_s < PRIMED_S:
                self._run()
            if metric not in self._host_bound:
                torch.cuda._sleep(int(spin_s * SPIN_HZ))
            events = [sample() for _ in range(count)]
            caught_up = events[0][0].query()
            _synchronize()
            if not caught_up or metric in self._host_bound:
                return [start.elapsed_time(end) / 1e3 for start, end in events]
            self._host_s[metric] *= 2

    def _estimate(self) -> float:
        """Set the device time of a call and of a flushed call; return the host time to enqueue a call, s."""
        self._run()  # what only a first call does is not its host time
        _synchronize()
        began = time.perf_counter()
        self._run()
        host_s = 1.5 * (time.perf_counter() - began)
        _synchronize()
        calls = _calls_in(0.02, time.perf_counter() - began, most=5)
        torch.cuda._sleep(int(min(calls * host_s + 1e-4, SPIN_LIMIT_S) * SPIN_HZ))
        flush = _between_events(self._flush.zero_)
        work = _between_events(lambda: self._repeat(calls))
        _synchronize()
        self._call_s = max(1e-6, work[0].elapsed_time(work[1]) / 1e3 / calls)
        self.cold_sample_s = self._call_s + flush[0].elapsed_time(flush[1]) / 1e3
        return host_s

    def _capture(self, pool: Any) -> None:
        """Capture as many calls as make one hot sample; there is no graph where memory does not suffice for it."""
        calls = _calls_in(HOT_SAMPLE_S, self._call_s)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                for _ in range(calls):
                    outputs = self._run()
            graph.replay()
            _synchronize()
        except torch.OutOfMemoryError:
            return
        except RuntimeError as error:
            raise CaptureFailed(str(error)) from error
        self._graph, self._graph_outputs, self._graph_calls = graph, outputs, calls


class CudaLoad:
    """Keeps the device busy: a few chunks of calls are always enqueued; `completions` says when each was done."""

    AHEAD = 3

    def __init__(self, advance: Callable[[], None], calls: int, repeats: int):
        self._advance, self._calls, self._repeats = advance, calls * repeats, repeats
        self._pending: deque[Any] = deque()
        self._done = 0
        self.completions: list[tuple[float, int]] = []

    def step(self) -> None:
        while len(self._pending) < self.AHEAD:
            for _ in range(self._repeats):
                self._advance()
            event = torch.cuda.Event()
            event.record()
            self._pending.append(event)
        if self._pending[0].query():
            self._pending.popleft()
            self._done += self._calls
            self.completions.append((time.perf_counter(), self._done))
        else:
            time.sleep(2e-4)

    def stop(self) -> None:
        _synchronize()
        self._pending.clear()


def flush_buffer(device: str) -> Tensor:
    """A buffer of twice the last-level cache, to be written before a cold sample."""
    if device == "cuda":
        cache = torch.cuda.get_device_properties().L2_cache_size
        return torch.empty(2 * max(cache, 2**20), dtype=torch.uint8, device="cuda")
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    cache = int(size.read_text().strip().removesuffix("K")) * 1024 if size.exists() else CPU_FLUSH_BYTES
    return torch.empty(min(2 * cache, CPU_FLUSH_BYTES), dtype=torch.uint8)


def _calls_in(seconds: float, call_s: float, most: int = MAX_CALLS) -> int:
    return max(1, min(most, MAX_CALLS, math.ceil(seconds / call_s)))


def _between_events(work: Callable[[], Any]) -> tuple[Any, Any]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    return start, end


def _synchronize() -> None:
    torch.cuda.current_stream().synchronize()
