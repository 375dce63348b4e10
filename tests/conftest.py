"""Fixtures of more than one folder."""

from __future__ import annotations

import gc
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: a second thread of one spins where another works
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes of tests

import pytest

from impl.cuda.emulator import compile as emulator_compile


def pytest_collection_finish():
    """What is there by now stays to the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def without_compiler(monkeypatch, tmp_path):
    """A machine on whose PATH there is no program at all."""
    emulator_compile.available.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield
    emulator_compile.available.cache_clear()
