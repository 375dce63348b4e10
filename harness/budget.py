"""The time budget of a run: minutes of measuring, counted over all its panels since the run was started."""

from __future__ import annotations

from pathlib import Path

from harness.config import Config


class Budget:
    """Seconds left of `config.budget_min`. What is spent is kept beside the records, one line per case, so that
    panels measured by different processes, and at the same time, count together."""

    def __init__(self, config: Config):
        self._limit_s = None if config.budget_min is None else 60 * config.budget_min
        self._path = _path(config)

    def spend(self, seconds: float) -> None:
        if self._limit_s is not None:
            with self._path.open("a") as file:
                file.write(f"{seconds:.3f}\n")

    @property
    def is_spent(self) -> bool:
        if self._limit_s is None or not self._path.exists():
            return False
        return sum(map(float, self._path.read_text().split())) >= self._limit_s


def start_budget(config: Config) -> None:
    """Count from now: called once when a run is started or resumed."""
    _path(config).unlink(missing_ok=True)


def _path(config: Config) -> Path:
    return config.results / "budget_spent_s.txt"
