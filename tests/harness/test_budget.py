from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.budget import Budget, start_budget


def config(tmp_path: Path, minutes: float | None) -> SimpleNamespace:
    return SimpleNamespace(results=tmp_path, budget_min=minutes)


def test_panels_spend_one_budget_and_a_new_start_gives_it_back(tmp_path: Path) -> None:
    run = config(tmp_path, 1.0)
    one, other = Budget(run), Budget(run)
    one.spend(40)
    assert not other.is_spent
    other.spend(20)
    assert one.is_spent
    assert other.is_spent
    start_budget(run)
    assert not Budget(run).is_spent


@pytest.mark.parametrize("minutes", [None, 1e9])
def test_without_or_within_a_budget_nothing_stops(tmp_path: Path, minutes: float | None) -> None:
    budget = Budget(config(tmp_path, minutes))
    budget.spend(1e6)
    assert not budget.is_spent
