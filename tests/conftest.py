"""Fixtures of more than one folder."""

from __future__ import annotations

import pytest

from impl.cuda.emulator import compile as emulator_compile


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    """A machine on whose PATH there is no program at all."""
    emulator_compile.available.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield
    emulator_compile.available.cache_clear()
