"""SpMM, share of the copy's bandwidth at which each format's bytes are moved, by sparsity, one panel per N."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.run import Run
from harness.figures.spmm import random_only, spmm_rows
from harness.figures.spmm_boxes import boxes_by_sparsity, by_sparsity

TITLE = "SpMM, fraction of the copy's bandwidth by share of zeros (a point is a layer)"


def table(run: Run) -> pd.DataFrame:
    return by_sparsity(random_only(spmm_rows(run)))


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["bandwidth_fraction"].notna().any():
        return None
    if rows["gbps"].notna().any():
        return "no fraction of the bandwidth: the copy that it is taken of was not measured in this run"
    return run.explain(rows, "SpMM times")


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    return boxes_by_sparsity(rows, run, TITLE, "bandwidth_fraction", "bytes / time,\nfraction of the copy")
