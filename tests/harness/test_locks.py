from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness import locks
from harness.locks import hold_one


@pytest.fixture(autouse=True)
def _own_temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(locks, "POLL_S", 0.01)


def never() -> bool:
    return False


def test_the_first_free_device_is_taken() -> None:
    with hold_one(["a", "b"], print, never) as first, hold_one(["a", "b"], print, never) as second:
        assert (first, second) == ("a", "b")
    with hold_one(["a", "b"], print, never) as again:
        assert again == "a"


def test_waiting_is_said_once_and_can_be_stopped() -> None:
    said: list[str] = []
    polls = iter(range(5))
    with hold_one(["a"], print, never), hold_one(["a"], said.append, lambda: next(polls) == 4) as held:
        assert held is None
    assert said == ["another run is measuring on a; waiting for it to end"]


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    program = f"""
import tempfile, time
tempfile.tempdir = {str(tmp_path)!r}
from harness.locks import hold_one
with hold_one(["a"], print, lambda: False):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    said: list[str] = []
    with hold_one(["a"], said.append, never) as held:
        assert held == "a"
    assert said == []
