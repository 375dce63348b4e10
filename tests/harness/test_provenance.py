from __future__ import annotations

import getpass
import importlib.util
import json
import platform
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness import provenance
from harness.contender import Target, discover


def test_libraries_are_those_loaded() -> None:
    versions = provenance.library_versions()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__
    assert "xformers" not in versions


def test_every_package_a_contender_asks_for_is_told_once_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: asked.add(name))
    gpu = Target("cuda", "NVIDIA H200", (9, 0))
    for contenders in discover().values():
        for contender in contenders.values():
            contender.unavailable(gpu)
    assert {"xformers", "flash_attn", "fa3_fwd_interface"} <= asked
    assert asked <= {module.partition(".")[0] for module in provenance.PACKAGES}


def test_a_loaded_cuda_library_tells_its_own_version() -> None:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    assert provenance.library_versions()["nvrtc"] == f"{major}.{minor}"


def test_commit_is_marked_dirty_by_tracked_changes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() is None
    git("init", "-q")
    (tmp_path / "results").mkdir()
    for name in ("code.py", "results/table.csv"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    (tmp_path / "untracked.py").write_text("2")
    (tmp_path / "results" / "table.csv").write_text("2")
    assert provenance.commit() == head
    (tmp_path / "code.py").write_text("2")
    assert provenance.commit() == f"{head}-dirty"


def test_nothing_names_a_person_or_a_machine() -> None:
    told = json.dumps([provenance.library_versions(), provenance.host(), provenance.commit()])
    for name in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert name not in told
    assert getpass.getuser() not in told or getpass.getuser() == "root"


@pytest.mark.gpu
def test_cuda_libraries_are_told_after_use() -> None:
    import torch

    a = torch.ones(8, 8, device="cuda")
    (a @ a).sum().item()
    versions = provenance.library_versions()
    assert versions["cudart"].split(".")[0] == torch.version.cuda.split(".")[0]
    assert "cublas" in versions
