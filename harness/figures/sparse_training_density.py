"""A step of SAT's sparse phase over the dense ones by density, and the density at which they break even."""

from __future__ import annotations

import itertools
import math

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import facets, legend, lines, log_scale, log_ticks, page, reference_line, share
from harness.figures.run import Run

TITLE = "Sparse training, speed-up of SAT's sparse phase over a dense step, by share of blocks kept"
SHAPE = ["seqlen_q", "block", "tokens", "density"]
OURS, DENSE = "sat", ("dense", "dense_map", "dense_monitor", "dense_flash")


def table(run: Run) -> pd.DataFrame:
    """A row for each case and dense step: `over` is its time by ours, `break_even` the density where that is 1."""
    keep = ["layers", "batch"]
    rows = run.select("sparse_training_step", SHAPE, ["cold_median_s"], keep=keep, speed=True)
    ours = rows[rows["contender"] == OURS].set_index(["experiment", "case_id"])["cold_median_s"]
    rows = rows[rows["contender"].isin(DENSE)].join(ours.rename("ours_s"), on=["experiment", "case_id"])
    rows["over"] = rows["cold_median_s"] / rows["ours_s"]
    groups = rows.groupby(["experiment", "seqlen_q", "block", "tokens", "contender"], dropna=False)
    found = groups[["density", "over"]].apply(lambda own: break_even(own["density"], own["over"]))
    return rows.join(found.rename("break_even"), on=groups.keys) if len(rows) else rows.assign(break_even=[])


def break_even(density: pd.Series, speedup: pd.Series) -> float:
    """Where the speed-up falls to 1, on a line between its neighbours in the logarithms; NaN where it does not."""
    points = sorted(zip(density.astype(float), speedup, strict=True))
    points = [(d, s) for d, s in points if s == s]
    for (d0, s0), (d1, s1) in itertools.pairwise(points):
        if s0 >= 1 > s1:
            part = math.log(s0) / math.log(s0 / s1)
            return d0 * (d1 / d0) ** part
    return math.nan


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "speed-ups over dense") if rows["over"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = facets(rows, ["seqlen_q"], ["experiment", "block", "tokens"])
    panels = [(f"{title}\n{said(group)}", group) for title, group in panels if group["density"].nunique() > 1] or panels
    labels = {"xlabel": "share of blocks kept", "ylabel": "dense time / SAT's"}
    figure, cells = page(panels, run, TITLE, height=2.0, **labels)
    series = run.looks(rows)
    for ax, group in cells:
        lines(ax, group, "density", "over", series)
        reference_line(ax, 1.0)
        log_ticks(ax, group["density"], share)
        log_scale(ax, "y")
    legend(figure, rows, series, "line")
    return figure


def said(rows: pd.DataFrame) -> str:
    """The density at which SAT's step takes as long as each dense one that has several."""
    parts, lines = [], rows[rows.groupby("label")["density"].transform("nunique") > 1]
    for label, own in (rows if lines.empty else lines).groupby("label", sort=False):
        value, most = own["break_even"].iloc[0], own["density"].max()
        known = own["over"].notna().any()
        where = f"at {value:.2g}" if value == value else f"not up to {most:.2g}" if known else "no time"
        parts.append(f"{label}: {where}")
    return "breaks even with " + "; ".join(parts)
