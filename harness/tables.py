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


def accuracies(run: Run) -> pd.DataFrame:
    """Of the trainings that ended, by task and method: the accuracy on the test split, its mean and standard deviation
    over the seeds, and how many these were; after how many steps, and from which step on they were sparse."""
    ended = [
        {**training.settings, **training.who, "sparse_from": training.transition}
        for training in run.trainings()
        if training.ended
    ]
    columns = ["task", "source", "label", "steps", "test_accuracy", "sparse_from"]
    by = ["task", "source", "steps", "label"]
    groups = pd.DataFrame(ended, columns=columns).astype({"test_accuracy": float, "sparse_from": float}).groupby(by)
    table = groups["test_accuracy"].agg(mean="mean", deviation="std", seeds="count")
    return table.join(groups["sparse_from"].agg(sparse_from="min", sparse_from_last="max"))


def monitor_cost(run: Run) -> pd.DataFrame:
    """What SAT's exact monitor adds to a training step with fused attention, as a share of it, by case."""
    case = ["seqlen_q", "density"]
    rows = run.select("sparse_training_step", case, ["cold_median_s"], speed=True)
    times = rows.pivot_table(index=["case_id", *case], columns="contender", values="cold_median_s", dropna=False)
    times = times.reindex(columns=["sat_dense_phase", "dense_flash"])
    every = (times["sat_dense_phase"] / times["dense_flash"] - 1).dropna()
    return pd.DataFrame({"every step": every, "every tenth": every / 10}).droplevel("case_id").sort_index()
