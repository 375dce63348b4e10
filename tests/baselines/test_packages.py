"""Asking for a CUDA package: not there, there but broken, there."""

from __future__ import annotations

import importlib.util

import pytest

from baselines._attention import below, missing
from harness.contender import Target

HOPPER = Target("cuda", "NVIDIA H200", (9, 0))


@pytest.fixture
def package(tmp_path, monkeypatch):
    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    return write


def test_without_a_gpu_it_still_says_how_to_get_it():
    assert missing(Target("cpu", "a CPU"), "json", "pip install it") == "needs an NVIDIA GPU; there: pip install it"


def test_not_installed():
    assert missing(HOPPER, "no_such_package_of_attention.ops", "pip install it") == "not installed: pip install it"


def test_broken_extension_gives_its_first_line(package):
    text = "raise ImportError('libcudart.so.12: cannot open\\nmore lines')"
    reason = missing(HOPPER, package("broken_attention", text), "pip install it")
    assert reason == "does not load (libcudart.so.12: cannot open): pip install it"


def test_a_package_that_loads(package):
    assert missing(HOPPER, package("working_attention", "x = 1"), "pip install it") is None


@pytest.mark.skipif(importlib.util.find_spec("nvidia.cuda_runtime") is None, reason="no CUDA runtime wheel here")
def test_an_extension_finds_the_runtime_of_the_wheels(package):
    text = "import ctypes; ctypes.CDLL('libcudart.so.12')"  # by soname: only found when already loaded
    assert missing(HOPPER, package("wants_cudart", text), "pip install it") is None


def test_below_compares_capabilities():
    assert below(HOPPER, (9, 0), "it", "other") is None
    assert below(HOPPER, (10, 0), "it", "other") == "it needs compute capability 10.0, NVIDIA H200 has 9.0; use other"
