from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.nvml import Card, CardState


class FakeNvml:
    """As pynvml, of one card; `answers` by function name, an exception is raised."""

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: object):
        self.answers = answers
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError("Not Found")
        return "handle"

    def __getattr__(self, name: str) -> object:
        if not name.startswith("nvml") or name not in self.answers:
            raise AttributeError(f"no {name}")

        def answer(handle: str, *arguments: object) -> object:
            assert handle == "handle"
            self.calls.append(name)
            value = self.answers[name]
            value = value(*arguments) if callable(value) else value
            if isinstance(value, Exception):
                raise value
            return value

        return answer


def instant(milliwatts: int, status: int = 0) -> list[SimpleNamespace]:
    return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))]


def test_a_card_is_found_by_uuid_or_the_reason_is_told() -> None:
    Card("GPU-1", FakeNvml())
    with pytest.raises(RuntimeError, match="Not Found"):
        Card("GPU-2", FakeNvml())


def test_instant_power_is_preferred_and_the_averaged_reading_is_the_fallback() -> None:
    hopper = FakeNvml(nvmlDeviceGetFieldValues=lambda ids: instant(512_000), nvmlDeviceGetPowerUsage=400_000)
    assert Card("GPU-1", hopper).power_w() == 512.0
    volta = FakeNvml(nvmlDeviceGetFieldValues=lambda ids: instant(0, status=3), nvmlDeviceGetPowerUsage=250_000)
    card = Card("GPU-1", volta)
    assert [card.power_w(), card.power_w()] == [250.0, 250.0]
    assert volta.calls.count("nvmlDeviceGetFieldValues") == 1, "not asked again"


def test_what_a_card_does_not_tell_is_none_with_the_reason() -> None:
    card = Card("GPU-1", FakeNvml(nvmlDeviceGetTotalEnergyConsumption=FakeNvml.NVMLError("Not Supported")))
    assert card.energy_j() is None
    assert card.reasons["nvmlDeviceGetTotalEnergyConsumption"] == "Not Supported"
    assert card.state() == CardState()
    assert card.settings()["power_cap_w"] is None


def test_state_reads_clocks_heat_and_reasons() -> None:
    fake = FakeNvml(
        nvmlDeviceGetClockInfo=lambda kind: {1: 1410, 2: 3201}[kind],
        nvmlDeviceGetTemperature=61,
        nvmlDeviceGetPowerUsage=699_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=0x4 | 0x1,
    )
    state = Card("GPU-1", fake).state()
    assert state == CardState(1410, 3201, 61, 699.0, "power_cap")
    assert not state.slowed


@pytest.mark.parametrize(
    ("mask", "slowed"),
    [(0, False), (0x1, False), (0x4, False), (0x20, True), (0x40, True), (0x8, True), (0x84, True)],
)
def test_only_heat_and_hardware_spoil_a_sample(mask: int, slowed: bool) -> None:
    assert Card("GPU-1", FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=mask)).state().slowed is slowed


def test_two_readings_around_a_round_become_one() -> None:
    before = CardState(1000, 3201, 50, 300.0, "none")
    after = CardState(1200, 3201, 55, None, "power_cap+hw_thermal")
    assert before.around(after) == CardState(1100, 3201, 55, 300.0, "hw_thermal+power_cap")
    assert CardState().around(CardState()) == CardState()


def test_readings_in_quick_succession_ask_once() -> None:
    fake = FakeNvml(nvmlDeviceGetTemperature=50)
    card = Card("GPU-1", fake)
    for _ in range(3):
        card.state()
    assert fake.calls.count("nvmlDeviceGetTemperature") == 1
