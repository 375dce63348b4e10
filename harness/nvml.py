"""One GPU as NVML sees it: clocks, heat, power, the energy counter, and who else is on it.

NVML and CUDA number devices differently, so a card is addressed by its UUID. Every query answers None where
driver or card do not, and `reasons` then says why.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

POWER_INSTANT_FIELD = 186  # Hopper's nvmlDeviceGetPowerUsage is an average over 1 s, this field is not
READING_S = 0.01  # younger readings are given again: NVML's own are updated every 20 to 100 ms

THROTTLE_REASONS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
SLOWED = {"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}  # not the power cap: normal under load


@dataclass(frozen=True)
class CardState:
    """A reading of the card; fields as in `records.Sample`."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: str | None = None

    @property
    def slowed(self) -> bool:
        """Whether heat or hardware held the card back, which makes a sample worthless."""
        return bool(SLOWED & set((self.throttle or "").split("+")))

    def around(self, later: CardState) -> CardState:
        """This reading and a later one as one: mean clocks and power, highest temperature, all throttle reasons."""
        reasons = {r for s in (self, later) for r in (s.throttle or "").split("+")} - {"", "none"}
        known = self.throttle is not None or later.throttle is not None
        temperatures = [t for t in (self.temperature_c, later.temperature_c) if t is not None]
        return CardState(
            _mean(self.sm_clock_mhz, later.sm_clock_mhz),
            _mean(self.memory_clock_mhz, later.memory_clock_mhz),
            max(temperatures, default=None),
            _mean(self.power_w, later.power_w),
            ("+".join(sorted(reasons)) or "none") if known else None,
        )


class Card:
    """The GPU with this UUID. Raises RuntimeError where there is no NVML or no such card."""

    def __init__(self, uuid: str, library: ModuleType | Any = None):
        try:
            if library is None:
                import pynvml as library
            self._nvml = library
            library.nvmlInit()
            self._handle = library.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # no package, no library, no driver, no such card
            raise RuntimeError(f"NVML: {error}") from None
        self.reasons: dict[str, str] = {}
        self._has_instant_power = True
        self._last: tuple[float, CardState] | None = None

    def ask(self, function: str, *arguments: Any) -> Any | None:
        """What `function(handle, *arguments)` answers, or None."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (AttributeError, self._nvml.NVMLError) as error:
            self.reasons[function] = str(error)
            return None

    def energy_j(self) -> float | None:
        """The energy counter, J since the driver was loaded."""
        millijoules = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1000

    def power_w(self) -> float | None:
        """Board power, W: instantaneous where the card tells it, else as nvmlDeviceGetPowerUsage averages it."""
        if self._has_instant_power:
            fields = self.ask("nvmlDeviceGetFieldValues", [POWER_INSTANT_FIELD])
            if fields is not None and fields[0].nvmlReturn == 0:
                return fields[0].value.uiVal / 1000
            self._has_instant_power = False
        milliwatts = self.ask("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def temperature_c(self) -> float | None:
        return self.ask("nvmlDeviceGetTemperature", 0)

    def state(self) -> CardState:
        now = time.monotonic()
        if self._last is None or now - self._last[0] > READING_S:
            sm_clock, memory_clock = 1, 2
            state = CardState(
                sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", sm_clock),
                memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", memory_clock),
                temperature_c=self.temperature_c(),
                power_w=self.power_w(),
                throttle=self._throttle(),
            )
            self._last = (now, state)
        return self._last[1]

    def _throttle(self) -> str | None:
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:  # drivers before 535
            mask = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask is None:
            return None
        return "+".join(sorted(name for bit, name in THROTTLE_REASONS.items() if mask & bit)) or "none"

    def other_processes(self) -> int | None:
        """Processes with a CUDA context on the card; asked before ours has one."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else len(processes)

    def utilization(self) -> float | None:
        """Share of the last second in which a kernel ran."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.gpu / 100

    def settings(self) -> dict[str, Any]:
        """What stays the same during a run and moves its numbers; None where unknown."""
        ecc, mig = self.ask("nvmlDeviceGetEccMode"), self.ask("nvmlDeviceGetMigMode")
        cap = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        persistence = self.ask("nvmlDeviceGetPersistenceMode")
        return {
            "power_cap_w": None if cap is None else cap / 1000,
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "persistence": None if persistence is None else bool(persistence),
            "sm_clock_max_mhz": self.ask("nvmlDeviceGetMaxClockInfo", 1),
            "other_processes": self.other_processes(),
            "utilization": self.utilization(),
        }


def _mean(a: float | None, b: float | None) -> float | None:
    known = [x for x in (a, b) if x is not None]
    return sum(known) / len(known) if known else None
