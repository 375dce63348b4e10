"""The diagnosis names every contender and says why one is not available."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness import doctor
from harness.contender import Target, discover
from harness.machine import Gpu
from harness.nvml import CardState


@pytest.fixture
def printed(monkeypatch):
    """What print_diagnosis prints on a terminal of this width, given these GPUs."""

    def run(gpus: list[Gpu], width: int = 300) -> str:
        console = Console(record=True, width=width, file=io.StringIO())
        monkeypatch.setattr(doctor, "gpus", lambda: gpus)
        monkeypatch.setattr(doctor, "Console", lambda **_: console)
        doctor.print_diagnosis()
        return console.export_text()

    return run


def test_every_contender_is_there_with_its_reason(printed):
    text = printed([])
    assert "none visible" in text
    for contenders in discover().values():
        for name, contender in contenders.items():
            reason = contender.unavailable(Target("cpu", "x")) or "available"
            assert any(name in line and reason in line for line in text.splitlines()), name


def test_without_a_compiler_the_emulator_says_what_it_needs(printed, without_compiler):
    assert "the emulator needs g++" in printed([])


GPU = Gpu("GPU-1", "NVIDIA H200", (9, 0), 140 * 2**30, "580.1")


class FakeCard:
    reasons = {"nvmlDeviceGetTotalEnergyConsumption": "Not Supported by this driver, nor by the next"}  # noqa: RUF012

    def __init__(self, uuid):
        assert uuid == "GPU-1"

    def energy_j(self):
        return None

    def state(self):
        return CardState(power_w=71.5)

    def settings(self):
        return {"ecc": True}


def test_a_gpu_is_told_with_what_nvml_answers(printed, monkeypatch):
    monkeypatch.setattr(doctor, "Card", FakeCard)
    text = printed([GPU])
    for part in ("NVIDIA H200, compute capability 9.0, 140 GiB", "580.1", "71.5", "Not Supported", "no answer"):
        assert part in text


@pytest.mark.parametrize("width", [80, 120])
def test_names_stay_in_one_piece(printed, monkeypatch, width):
    monkeypatch.setattr(doctor, "Card", FakeCard)
    lines = printed([GPU], width).splitlines()
    assert max(map(len, lines)) <= width
    words = {cell.strip() for line in lines for cell in line.split("│")}
    names = {name for contenders in discover().values() for name in contenders}
    assert {*names, *doctor.PACKAGES, "nvml cannot nvmlDeviceGetTotalEnergyConsumption"} <= words
