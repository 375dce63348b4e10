"""Interleaving and stopping, on scripted timers with their own clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from harness import timing
from harness.config import Measure
from harness.nvml import CardState
from harness.timing import MAX_SAMPLES, Timings, time_interleaved


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def perf_counter(self) -> float:
        return self.time


class ScriptedTimer:
    """Calls of `call_s`, spread by `noise`; each turn is noted in `log` as (name, metric, count)."""

    hot_method = "loop"
    host_bound = False

    def __init__(self, name: str, clock: Clock, log: list, call_s: float, noise: float = 0.0, flush_s: float = 0.0):
        self.name, self.clock, self.log, self.call_s, self.noise, self.flush_s = (
            name,
            clock,
            log,
            call_s,
            noise,
            flush_s,
        )
        self.cold_sample_s = self.hot_sample_s = call_s + flush_s
        self.fails_at: int | None = None
        self.warm_up_s = 0.0

    def warm_up(self, seconds: float) -> None:
        self.warm_up_s += seconds
        self.clock.time += seconds

    def _take(self, metric: str, count: int) -> list[float]:
        self.log.append((self.name, metric, count))
        if self.fails_at is not None and len(self.log) >= self.fails_at:
            raise RuntimeError("gone")
        seconds = [self.call_s * random.uniform(1 - self.noise, 1 + self.noise) for _ in range(count)]
        self.clock.time += sum(seconds) + count * self.flush_s
        return seconds

    def cold(self, count: int) -> list[float]:
        return self._take("cold", count)

    def hot(self, count: int) -> list[float]:
        return self._take("hot", count)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def run(
    timers: dict[str, ScriptedTimer], state: Callable[[], CardState] = CardState, **rule: float
) -> dict[str, Timings]:
    return time_interleaved(timers, Measure(**rule), state, lambda n: None, lambda n, e: None, random.Random(3))


def test_contenders_take_turns_in_a_new_order_each_round(clock: Clock) -> None:
    log: list = []
    timers = {name: ScriptedTimer(name, clock, log, 1e-3) for name in "abcde"}
    found = run(timers)
    cold = [name for name, metric, _ in log if metric == "cold"]
    rounds = [cold[i : i + 5] for i in range(0, len(cold), 5)]
    assert len(rounds) == 6
    assert all(sorted(names) == list("abcde") for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert all([s.round for s in t.cold.samples] == sorted(s.round for s in t.cold.samples) for t in found.values())


def test_a_steady_series_stops_when_all_conditions_hold(clock: Clock) -> None:
    timings = run({"a": ScriptedTimer("a", clock, [], 1e-3, noise=0.001)})["a"]
    for series in (timings.cold, timings.hot):
        assert series.stop_reason == "converged"
        assert series.rounds >= 6
        assert len(series.samples) >= 10
        assert 0.1 <= series.spent_s < 0.13
    assert timings.window_s == pytest.approx(timings.cold.spent_s + timings.hot.spent_s + 0.05)


def test_a_noisy_series_stops_at_its_time_limit(clock: Clock) -> None:
    timings = run({"a": ScriptedTimer("a", clock, [], 1e-2, noise=0.5)}, max_time_s=0.7)["a"]
    assert timings.cold.stop_reason == "max_time"
    assert 0.7 <= timings.cold.spent_s < 0.9


def test_short_calls_stop_at_the_most_samples_a_record_keeps(clock: Clock) -> None:
    timings = run({"a": ScriptedTimer("a", clock, [], 5e-6, noise=0.001)})["a"]
    assert timings.hot.stop_reason == "max_samples"
    assert len(timings.hot.samples) == MAX_SAMPLES


def test_long_calls_are_taken_one_at_a_time_and_end_in_time(clock: Clock) -> None:
    log: list = []
    timings = run({"a": ScriptedTimer("a", clock, log, 0.9)}, max_time_s=2.0)["a"]
    assert all(count == 1 for _, _, count in log)
    assert len(timings.cold.samples) == 3
    assert timings.cold.stop_reason == "max_time"


def test_a_call_longer_than_the_limit_has_a_median(clock: Clock) -> None:
    timings = run({"a": ScriptedTimer("a", clock, [], 0.9)}, max_time_s=0.5)["a"]
    assert len(timings.cold.samples) == len(timings.cold_rounds()) == 3
    assert timings.cold.stop_reason == "max_time"


def test_the_flush_counts_as_measuring_and_not_as_the_call(clock: Clock) -> None:
    timings = run({"a": ScriptedTimer("a", clock, [], 1e-3, flush_s=4e-3)})["a"]
    assert timings.cold.spent_s < 0.13
    assert timings.cold.accepted == pytest.approx([1e-3] * len(timings.cold.accepted))


def test_heat_discards_a_rounds_samples_and_the_power_cap_does_not(clock: Clock) -> None:
    readings = iter(range(10**6))

    def state() -> CardState:
        return CardState(1400, 3201, 60, 700.0, "sw_thermal" if next(readings) < 6 else "power_cap")

    timings = run({"a": ScriptedTimer("a", clock, [], 1e-3, noise=0.001)}, state)["a"]
    rejected = [s for s in timings.cold.samples if not s.accepted]
    assert rejected
    assert {s.round for s in rejected} == {0, 1}
    assert all("sw_thermal" in s.throttle for s in rejected)
    assert all(s.throttle == "power_cap" for s in timings.cold.samples if s.accepted)
    assert timings.cold.stop_reason == "converged"
    assert set(timings.cold_rounds()).isdisjoint({0, 1})


def test_a_card_that_stays_hot_gives_up_with_nothing_accepted(clock: Clock) -> None:
    state = lambda: CardState(throttle="hw_thermal")  # noqa: E731
    timings = run({"a": ScriptedTimer("a", clock, [], 1e-3)}, state, max_time_s=0.5)["a"]
    assert timings.cold.accepted == []
    assert timings.cold.stop_reason == "max_time"


def test_an_error_ends_one_contender_only(clock: Clock) -> None:
    log: list = []
    timers = {name: ScriptedTimer(name, clock, log, 1e-3) for name in "ab"}
    timers["b"].fails_at = 5
    failed = []
    found = time_interleaved(
        timers, Measure(), CardState, lambda n: None, lambda n, e: failed.append((n, str(e))), random.Random(3)
    )
    assert failed == [("b", "gone")]
    assert found["a"].cold.stop_reason == "converged"
    assert str(found["b"].error) == "gone"


def test_each_turn_is_announced_before_it_begins(clock: Clock) -> None:
    log: list = []
    timers = {name: ScriptedTimer(name, clock, log, 1e-3) for name in "ab"}
    time_interleaved(
        timers, Measure(), CardState, lambda n: log.append(("begin", n)), lambda n, e: None, random.Random()
    )
    for before, entry in itertools.pairwise(log):
        if entry[0] != "begin" and entry[1] == "cold":
            assert before == ("begin", entry[0])
