"""The V100 node's environment.yml resolves and installs from PyPI today, and its torch carries sm_70 code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.paths import ROOT

LOCK = ROOT / "requirements/cuda12.txt"


def pinned() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_conda_gives_python_and_pip_and_the_lock_the_rest():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-r requirements/cuda12.txt"]}]


def test_the_lock_is_the_last_torch_for_volta_with_its_own_nvrtc():
    versions = pinned()
    assert versions["torch"] == "2.10.0"
    assert versions["xformers"] == "0.0.35"
    assert versions["nvidia-cuda-nvrtc-cu12"].startswith("12.8.")


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("[cn]*.txt")), ids=lambda p: p.stem)
def test_locks_pin_everything_and_name_no_host(lock):
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    wanted = r"[a-z0-9-]+" if lock.stem == "node-image" else r"[a-z0-9-]+==[0-9][0-9a-z.]*"
    assert lines
    assert [line for line in lines if not re.fullmatch(wanted, line)] == []


def test_the_cpu_lock_has_a_plain_torch_and_no_cuda_of_its_own():
    lines = (ROOT / "requirements/cpu.txt").read_text().splitlines()
    assert "torch==2.13.0" in lines
    nvidia = [line.partition("==")[0] for line in lines if line.startswith("nvidia-")]
    assert set(nvidia) <= {"nvidia-ml-py", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"}


@pytest.mark.network
def test_it_installs_and_its_torch_has_sm_70(tmp_path):
    """About 8 GB of packages and ten minutes: `pytest -m network tests/workflow/test_environment.py`."""
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", "-r", LOCK], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    ask = "import torch, xformers; print(torch.__version__, torch.version.cuda, xformers.__version__)"
    versions = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    assert versions == ["2.10.0+cu128", "12.8", "0.0.35"]
    packages = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    assert "sm_70" in architectures(packages / "torch/lib/libtorch_cuda.so", packages)


def architectures(library: Path, packages: Path) -> set[str]:
    """Those that `library` holds machine code for, by cuobjdump (triton's wheel brings one)."""
    brought = packages / "triton/backends/nvidia/bin/cuobjdump"
    cuobjdump = brought if brought.exists() else shutil.which("cuobjdump")
    listed = subprocess.run([cuobjdump, "--list-elf", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"sm_\d+a?", listed))
