"""The energy pass on a scripted card with its own clock: its power is known, so every joule is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness.config import Energy
from harness.energy import EnergyMeter, EnergyResult, probe_period

READ_S = 2e-5  # what a query costs


class World:
    """A card that draws `idle_w`, or `busy_w` while it works; readings change on ticks only."""

    def __init__(self, period_s: float, idle_w: float = 80.0, busy_w: float = 650.0, averaged_s: float = 0.0):
        self.period_s, self.idle_w, self.busy_w, self.averaged_s = period_s, idle_w, busy_w, averaged_s
        self.time, self.joules, self.busy = random.uniform(0, 5), random.uniform(0, 1e6), False
        self.power = idle_w
        self.seen = (self.joules, self.power)
        self.has_counter = self.has_power = True
        self.power_factor = 1.0
        self.reset_at: float | None = None
        self.queries: list[str] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        step = min(seconds, 5e-4)
        for _ in range(max(1, round(seconds / step))):
            before, self.time = self.time, self.time + step
            target = self.busy_w if self.busy else self.idle_w
            self.power += (target - self.power) * (min(1.0, step / self.averaged_s) if self.averaged_s else 1.0)
            self.joules += target * step
            if self.reset_at is not None and self.time > self.reset_at:
                self.joules, self.reset_at = 0.0, None
            if before // self.period_s != self.time // self.period_s:
                self.seen = (self.joules, self.power)

    def energy_j(self) -> float | None:
        self.sleep(READ_S)
        self.queries.append("energy")
        return self.seen[0] if self.has_counter else None

    def power_w(self) -> float | None:
        self.sleep(READ_S)
        self.queries.append("power")
        return self.seen[1] * self.power_factor if self.has_power else None

    def temperature_c(self) -> float | None:
        return 40.0 + 20 * self.busy


class ScriptedLoad:
    def __init__(self, world: World, call_s: float):
        self.world, self.call_s, self.began = world, call_s, world.time
        self.completions: list[tuple[float, int]] = []
        world.busy = True

    def step(self) -> None:
        self.world.sleep(1e-3)
        completed = int((self.world.time - self.began) / self.call_s)
        if not self.completions or completed > self.completions[-1][1]:
            self.completions.append((self.world.time, completed))

    def stop(self) -> None:
        self.world.busy = False


def measure(world: World, call_s: float = 2e-5, **settings: float) -> EnergyResult:
    chosen = Energy(**{"trials": 3, "settle_s": 0.5, **settings})
    meter = EnergyMeter(world, chosen, world.now, world.sleep, random.Random(world.time))
    return meter.measure(lambda: ScriptedLoad(world, call_s))


@pytest.mark.parametrize("period_s", [0.02, 0.1])
def test_joules_per_call_gross_and_above_idle(period_s: float) -> None:
    result = measure(World(period_s), call_s=3e-5)
    assert result.energy_j == pytest.approx(650 * 3e-5, rel=0.01)
    assert result.energy_net_j == pytest.approx((650 - 80) * 3e-5, rel=0.01)
    assert result.power_w == pytest.approx(650, rel=0.01)
    assert result.idle_power_w == pytest.approx(80, rel=0.02)
    assert result.call_s == pytest.approx(3e-5, rel=0.001)
    assert (result.source, result.quality) == ("counter", "good")
    assert (result.temperature_min_c, result.temperature_max_c) == (60, 60)


@pytest.mark.parametrize(("period_s", "least"), [(0.02, 1.0), (0.1, 5.0)])
def test_window_holds_fifty_ticks_and_ends_on_them(period_s: float, least: float) -> None:
    result = measure(World(period_s))
    assert result.period_s == pytest.approx(period_s, rel=0.05)
    assert result.window_s >= 0.98 * least
    ticks = result.window_s / period_s
    assert ticks == pytest.approx(round(ticks), abs=0.1)


def test_slow_calls_are_timed_across_the_window_not_by_counting_at_its_ends() -> None:
    result = measure(World(0.02), call_s=0.083)
    assert result.call_s == pytest.approx(0.083, rel=0.03)
    assert result.energy_j == pytest.approx(650 * 0.083, rel=0.03)


def test_without_a_counter_power_is_integrated_and_the_quality_is_fair() -> None:
    world = World(0.1)
    world.has_counter = False
    result = measure(world)
    assert result.energy_j == pytest.approx(650 * 2e-5, rel=0.02)
    assert (result.source, result.quality) == ("power_integral", "fair")


def test_a_power_of_nothing_is_no_reading() -> None:
    world = World(0.1)
    world.has_counter, world.power_factor = False, 0.0
    result = measure(world)
    assert result.energy_j is None
    assert "no energy reading" in result.quality


def test_a_counter_that_starts_anew_is_not_believed() -> None:
    world = World(0.1)
    world.reset_at = world.time + 8  # in the first trial's window
    result = measure(world)
    assert result.energy_j == pytest.approx(650 * 2e-5, rel=0.02)
    assert (result.source, result.quality) == ("power_integral", "fair")


def test_a_counter_that_stands_still_is_not_believed() -> None:
    world = World(0.1)
    world.energy_j = lambda: 5.0
    result = measure(world)
    assert result.energy_j == pytest.approx(650 * 2e-5, rel=0.02)
    assert result.source == "power_integral"


def test_a_counter_alone_is_fair() -> None:
    world = World(0.1)
    world.has_power = False
    assert measure(world).quality == "fair"


@pytest.mark.parametrize(("factor", "quality"), [(1.04, "good"), (1.06, "poor"), (0.9, "poor")])
def test_counter_and_integral_must_agree_within_five_percent(factor: float, quality: str) -> None:
    world = World(0.1)
    world.power_factor = factor
    assert measure(world).quality == quality


def test_trials_that_differ_are_poor() -> None:
    world = World(0.1)
    meter = EnergyMeter(world, Energy(trials=3, settle_s=0.5), world.now, world.sleep, random.Random(1))
    watts = iter([600.0, 650.0, 700.0])

    def load() -> ScriptedLoad:
        world.busy_w = next(watts)
        return ScriptedLoad(world, 2e-5)

    assert meter.measure(load).quality == "poor"


def test_settling_keeps_a_slow_average_out_of_the_window() -> None:
    settled = measure(World(0.1, averaged_s=0.3), settle_s=2.0)
    assert settled.quality == "good"


def test_a_card_that_tells_nothing_gives_a_reason_and_no_number() -> None:
    world = World(0.1)
    world.has_counter = world.has_power = False
    result = measure(world)
    assert result.quality == "the card tells neither energy nor power"
    assert result.energy_j is result.power_w is result.idle_power_w is None


def test_idle_and_period_are_measured_once_and_trials_start_at_other_phases() -> None:
    world = World(0.1)
    meter = EnergyMeter(world, Energy(trials=3, settle_s=0.5), world.now, world.sleep, random.Random(1))
    starts = []

    def load() -> ScriptedLoad:
        starts.append(world.time)
        return ScriptedLoad(world, 2e-5)

    meter.measure(load)
    first = world.time
    meter.measure(load)
    assert world.time - first < first - starts[0] + 0.5
    assert len(starts) == 6


@pytest.mark.parametrize(
    ("reading", "expected"),
    [(lambda t: t // 0.05, 0.05), (lambda t: t // 0.1, 0.1), (lambda t: 7.0, None), (lambda t: None, None)],
)
def test_period_is_found_from_changes(reading: Callable[[float], float | None], expected: float | None) -> None:
    world = World(1.0)
    found = probe_period(lambda: reading(world.time), world.now, world.sleep)
    assert found == (None if expected is None else pytest.approx(expected, rel=0.03))
