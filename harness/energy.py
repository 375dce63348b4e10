"""Energy of one call, from NVML's counter over a window in which the call repeats without a pause.

The counter moves in ticks (20 ms on a V100, 100 ms on an H100 or H200), so a window is at least 50 ticks long and
begins and ends on one. Each of several trials settles first and starts at a random phase of the tick. The counter
is checked against the integral of power samples; where there is no counter, or it went backwards, the integral
takes its place. Never one power reading times one duration.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.config import Energy as Settings

TICKS = 50  # a window is at least this many ticks long: an end read one poll late is then well below 1 %
DISAGREEMENT = 0.05  # of counter and integral, and of trials among each other
DEFAULT_PERIOD_S = 0.1


class Meter(Protocol):
    """What is asked of the card (`nvml.Card`)."""

    def energy_j(self) -> float | None: ...
    def power_w(self) -> float | None: ...
    def temperature_c(self) -> float | None: ...


class Load(Protocol):
    """Work that goes on while it is stepped (`timers.CudaLoad`)."""

    completions: list[tuple[float, int]]  # (when seen, calls completed by then)

    def step(self) -> None:
        """Keep the device busy; returns within a few milliseconds."""

    def stop(self) -> None: ...


class NoLoad:
    """An idle device."""

    def __init__(self, sleep: Callable[[float], None]):
        self.completions: list[tuple[float, int]] = []
        self._sleep = sleep

    def step(self) -> None:
        self._sleep(0.001)

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class Window:
    """One window: what the card drew in it."""

    seconds: float
    counter_j: float | None
    integral_j: float | None
    temperatures: list[float]
    call_s: float | None  # mean time of one call in it

    @property
    def joules(self) -> float | None:
        return self.counter_j if self.counter_j is not None else self.integral_j


@dataclass(frozen=True)
class EnergyResult:
    """Medians over the trials; `quality` is good, fair, poor, or the reason why the rest is None."""

    quality: str
    energy_j: float | None = None
    energy_net_j: float | None = None
    power_w: float | None = None
    idle_power_w: float | None = None
    call_s: float | None = None
    source: str | None = None
    window_s: float | None = None
    period_s: float | None = None
    temperature_min_c: float | None = None
    temperature_max_c: float | None = None


def probe_period(
    read: Callable[[], float | None], now: Callable[[], float], sleep: Callable[[float], None], limit_s: float = 1.5
) -> float | None:
    """Seconds between changes of a reading: the median, or None when it changes fewer than four times in `limit_s`."""
    changes: list[float] = []
    began, last = now(), read()
    while now() - began < limit_s and len(changes) < 12:
        sleep(0.001)
        value = read()
        if value is None:
            return None
        if value != last:
            changes.append(now())
            last = value
    gaps = [b - a for a, b in itertools.pairwise(changes)]
    return statistics.median(gaps) if len(gaps) >= 3 else None


class EnergyMeter:
    """Takes the energy of loads on one card. Period and idle power are measured once, when first needed."""

    def __init__(
        self,
        card: Meter,
        settings: Settings,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        rng: random.Random,
    ):
        self._card, self._settings, self._now, self._sleep, self._rng = card, settings, now, sleep, rng
        self._period_s: float | None = None
        self._idle_w: float | None = None

    def measure(self, load: Callable[[], Load]) -> EnergyResult:
        """Energy of one call of what `load()` repeats."""
        if self._card.energy_j() is None and self._card.power_w() is None:
            return EnergyResult("the card tells neither energy nor power")
        if self._period_s is None:
            self._calibrate()
        trials = [self._window(load(), self._window_s) for _ in range(self._settings.trials)]
        if any(not t.joules or not t.call_s for t in trials):  # a card at work that says 0 W tells nothing
            return EnergyResult("a window had no energy reading or fewer than two completed calls")
        return self._result(trials)

    @property
    def _window_s(self) -> float:
        return max(self._settings.window_s, TICKS * self._period_s)

    def _calibrate(self) -> None:
        for read in (self._card.energy_j, self._card.power_w):
            self._period_s = self._period_s or probe_period(read, self._now, self._sleep)
        self._period_s = self._period_s or DEFAULT_PERIOD_S
        idle = self._window(NoLoad(self._sleep), max(1.0, 10 * self._period_s))
        self._idle_w = None if idle.joules is None else idle.joules / idle.seconds

    def _window(self, load: Load, window_s: float) -> Window:
        began = self._now()
        delay = self._settings.settle_s + self._rng.uniform(0, self._period_s)
        while self._now() - began < delay:
            load.step()
        start_s, start_j = self._next_tick(load)
        powers: list[tuple[float, float]] = []
        temperatures: list[float] = []
        while self._now() - start_s < window_s:
            load.step()
            if not powers or self._now() - powers[-1][0] >= self._period_s / 2:
                self._sample(powers, temperatures)
        end_s, end_j = self._next_tick(load)
        self._sample(powers, temperatures)
        load.stop()
        return Window(
            seconds=end_s - start_s,
            counter_j=None if start_j is None or end_j is None or end_j <= start_j else end_j - start_j,
            integral_j=_integral(powers, start_s, end_s),
            temperatures=temperatures,
            call_s=_call_seconds(load.completions, start_s, end_s),
        )

    def _next_tick(self, load: Load) -> tuple[float, float | None]:
        """(when, counter) as soon as the counter moves; at once, with None, when it does not."""
        last, limit_s = self._card.energy_j(), self._now() + 10 * self._period_s
        while last is not None and self._now() < limit_s:
            load.step()
            value = self._card.energy_j()
            if value != last:
                return self._now(), value
        return self._now(), None

    def _sample(self, powers: list[tuple[float, float]], temperatures: list[float]) -> None:
        power, temperature = self._card.power_w(), self._card.temperature_c()
        if power is not None:
            powers.append((self._now(), power))
        if temperature is not None:
            temperatures.append(temperature)

    def _result(self, trials: list[Window]) -> EnergyResult:
        per_call = [t.joules / t.seconds * t.call_s for t in trials]
        powers = [t.joules / t.seconds for t in trials]
        call_s = statistics.median(t.call_s for t in trials)
        temperatures = [c for t in trials for c in t.temperatures]
        energy, idle = statistics.median(per_call), self._idle_w
        return EnergyResult(
            quality=_quality(trials, per_call, idle),
            energy_j=energy,
            energy_net_j=None if idle is None else energy - idle * call_s,
            power_w=statistics.median(powers),
            idle_power_w=idle,
            call_s=call_s,
            source="counter" if all(t.counter_j is not None for t in trials) else "power_integral",
            window_s=statistics.median(t.seconds for t in trials),
            period_s=self._period_s,
            temperature_min_c=min(temperatures, default=None),
            temperature_max_c=max(temperatures, default=None),
        )


def _quality(trials: list[Window], per_call: list[float], idle_w: float | None) -> str:
    """good: the counter, confirmed by the integral, trials alike; fair: not confirmed, or idle power not known; poor:
    contradicted by the integral or by other trials."""
    spread = (max(per_call) - min(per_call)) / statistics.median(per_call)
    confirmed = [t for t in trials if t.counter_j is not None and t.integral_j is not None]
    if spread > DISAGREEMENT or any(abs(t.integral_j / t.counter_j - 1) > DISAGREEMENT for t in confirmed):
        return "poor"
    return "good" if len(confirmed) == len(trials) and idle_w is not None else "fair"


def _integral(powers: list[tuple[float, float]], start_s: float, end_s: float) -> float | None:
    """Trapezoids of (s, W), scaled from the sampled span to the window; None when the samples miss most of it."""
    if len(powers) < 2:
        return None
    span = powers[-1][0] - powers[0][0]
    if span < 0.8 * (end_s - start_s):
        return None
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(powers))
    return area / span * (end_s - start_s)


def _call_seconds(completions: list[tuple[float, int]], start_s: float, end_s: float) -> float | None:
    inside = [c for c in completions if start_s <= c[0] <= end_s]
    if len(inside) < 2 or inside[-1][1] == inside[0][1]:
        return None
    return (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1])
