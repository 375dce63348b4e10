"""The fastest of several ways to make the same call, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.lazy import lazy_import

torch = lazy_import("torch")


def milliseconds(run: Callable[[], Any]) -> float:
    """Device time of a call: the shortest of five means over three."""
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(3):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 3)
    return min(times)


def fastest(runs: dict[str, Callable[[], Any]]) -> tuple[str, dict[str, float]]:
    """The name of the fastest call, and the milliseconds of each; each has run once before."""
    for run in runs.values():
        run()
    tried = {name: round(milliseconds(run), 4) for name, run in runs.items()}
    return min(tried, key=tried.get), tried
