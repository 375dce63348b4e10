"""Interleaved timing of the contenders of one case: shuffled rounds until each series is steady or out of time.

A series is one metric of one contender. It ends when it has `rounds` rounds, `min_samples` samples, `min_time_s` of
measuring and a relative IQR below `relative_iqr` (converged), or else at `max_time_s`, but not before FEWEST_ROUNDS
(max_time), or MAX_SAMPLES (max_samples). Every sample is kept; those whose round the card was slowed in by heat or
hardware are not accepted.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.config import Measure
from harness.nvml import CardState
from harness.records import Sample
from harness.statistics import relative_iqr
from harness.timers import Timer

MAX_SAMPLES = 600  # of one series: enough for a steady median, and what a record can carry
DIGITS = 10  # of a sample in seconds: 0.1 ns, finer than any clock here, and half the bytes of a record
FEWEST_ROUNDS = 3  # also of a call longer than the time limit: one sample has no median, and no ratio by rounds
MAX_BATCH = 50  # samples enqueued at once: well within a CUDA launch queue


@dataclass
class Series:
    """Samples of one metric, and when they are enough."""

    metric: str
    rule: Measure
    sample_s: float  # wall time of one sample: estimated at first, then measured
    samples: list[Sample] = field(default_factory=list)
    spent_s: float = 0.0
    rounds: int = 0
    stop_reason: str | None = None

    @property
    def accepted(self) -> list[float]:
        return [s.seconds for s in self.samples if s.accepted]

    def batch_size(self) -> int:
        """Samples of one round: a round's share of `min_time_s`, and of `min_samples` unless that takes too long."""
        least = math.ceil(self.rule.min_samples / self.rule.rounds)
        if least * self.rule.rounds * self.sample_s > self.rule.max_time_s:
            least = 1
        share = math.ceil(self.rule.min_time_s / self.rule.rounds / self.sample_s)
        return min(max(least, share), MAX_BATCH, MAX_SAMPLES - len(self.samples))

    def add(self, round_: int, seconds: list[float], spent_s: float, state: CardState) -> None:
        shared = {
            "metric": self.metric,
            "round": round_,
            "accepted": not state.slowed,
            "sm_clock_mhz": state.sm_clock_mhz,
            "memory_clock_mhz": state.memory_clock_mhz,
            "temperature_c": state.temperature_c,
            "power_w": state.power_w,
            "throttle": state.throttle,
        }
        self.samples += [Sample(seconds=round(s, DIGITS), **shared) for s in seconds]
        self.spent_s += spent_s
        self.rounds += 1
        self.sample_s = spent_s / len(seconds)
        self.stop_reason = self._why_stop()

    def _why_stop(self) -> str | None:
        accepted = self.accepted
        enough = (
            self.rounds >= self.rule.rounds
            and len(accepted) >= self.rule.min_samples
            and self.spent_s >= self.rule.min_time_s
        )
        if enough and relative_iqr(accepted) < self.rule.relative_iqr:
            return "converged"
        if self.spent_s >= self.rule.max_time_s and self.rounds >= FEWEST_ROUNDS:
            return "max_time"
        return "max_samples" if len(self.samples) >= MAX_SAMPLES else None


@dataclass
class Timings:
    """What timing one contender gave. `error` ended it early."""

    cold: Series
    hot: Series
    warm_up_s: float = 0.0
    error: Exception | None = None

    @property
    def window_s(self) -> float:
        return self.warm_up_s + self.cold.spent_s + self.hot.spent_s

    @property
    def samples(self) -> list[Sample]:
        return self.cold.samples + self.hot.samples

    def cold_rounds(self) -> dict[int, list[float]]:
        """Accepted cold samples by round, s."""
        rounds: dict[int, list[float]] = {}
        for sample in self.cold.samples:
            if sample.accepted:
                rounds.setdefault(sample.round, []).append(sample.seconds)
        return rounds


def time_interleaved(
    timers: Mapping[str, Timer],
    rule: Measure,
    read_state: Callable[[], CardState],
    begin: Callable[[str], None],
    failed: Callable[[str, Exception], None],
    rng: random.Random,
) -> dict[str, Timings]:
    """Time all contenders of one case, by name. `begin(name)` is called before each of their turns.

    An exception in one contender ends that contender only, unless `failed(name, error)` raises in turn.
    """
    timings = {
        name: Timings(Series("cold", rule, timer.cold_sample_s), Series("hot", rule, timer.hot_sample_s))
        for name, timer in timers.items()
    }
    for name, timer in timers.items():
        begin(name)
        with _errors_kept(name, timings[name], failed):
            began = time.perf_counter()
            timer.warm_up(rule.warmup_s)
            timings[name].warm_up_s = time.perf_counter() - began
    round_ = 0
    while active := [n for n, t in timings.items() if not t.error and not (t.cold.stop_reason and t.hot.stop_reason)]:
        rng.shuffle(active)
        for name in active:
            begin(name)
            with _errors_kept(name, timings[name], failed):
                for series in (timings[name].cold, timings[name].hot):
                    if not series.stop_reason:
                        _turn(timers[name], series, round_, read_state)
        round_ += 1
    return timings


@contextmanager
def _errors_kept(name: str, timings: Timings, failed: Callable[[str, Exception], None]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        timings.error = error.with_traceback(None)  # whose frames would keep the contender's memory
        failed(name, timings.error)


def _turn(timer: Timer, series: Series, round_: int, read_state: Callable[[], CardState]) -> None:
    take = timer.cold if series.metric == "cold" else timer.hot
    before = read_state()
    began = time.perf_counter()
    seconds = take(series.batch_size())
    spent_s = time.perf_counter() - began
    series.add(round_, seconds, spent_s, before.around(read_state()))
