"""Small tables of a run that the notebooks share."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.figures.run import Run
from harness.statistics import geometric_mean


def speedups(run: Run, op: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """Geometric mean, minimum and maximum of the speed-ups of each contender over the experiment's baseline, with the
    number of cases; one row per contender and combination of the columns `by`."""
    rows = run.select(op, by, ["speedup"], keep=["baseline"], speed=True).dropna(subset="speedup")
    rows = rows[rows["contender"] != rows["baseline"]]
    groups = rows.groupby(["baseline", *by, "label"], observed=True, sort=False)["speedup"]
    return groups.agg(geometric_mean=geometric_mean, lowest="min", highest="max", cases="count")


def not_run(run: Run, op: str) -> pd.DataFrame:
    """How many cases each contender could not run, by status and reason."""
    rows = run.select(op, [], [], speed=True)
    lost = rows[rows["status"] != "ok"]
    return lost.groupby(["label", "status", "reason"], dropna=False, sort=False).size().rename("cases").to_frame()
