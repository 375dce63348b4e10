"""What a worker does before its first case."""

from __future__ import annotations

import io
import json

import pytest
import torch

from harness import worker
from harness.contender import Target
from harness.paths import ROOT
from harness.worker import Job, Worker


class Card:
    """Counts processes as NVML does: this one too, once it has a context."""

    def __init__(self) -> None:
        self.processes = 0

    def settings(self) -> dict[str, int]:
        return {"other_processes": self.processes}


def test_other_processes_of_the_card_do_not_count_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()

    def make_context() -> Target:
        card.processes += 1
        return Target("cuda", "NVIDIA H200", (9, 0), 2**37)

    monkeypatch.setattr(worker, "_cuda_target", make_context)
    monkeypatch.setattr(worker, "flush_buffer", lambda device: torch.empty(0))
    monkeypatch.setattr(worker, "Card", lambda uuid: card)
    monkeypatch.setattr(worker.gc, "freeze", lambda: None)
    told = io.StringIO()
    Worker(Job(str(ROOT / "config" / "h200.yaml"), "attention/forward_d64", 1, "GPU-1", "580", []), told)
    assert json.loads(told.getvalue())["machine"]["card"] == {"other_processes": 0}
    assert card.processes == 1
