"""Time and memory of a step of sparse training by sequence length: each method, at one density of SAT's pattern."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, facets, legend, lines, log_scale, log_ticks, page, share
from harness.figures.run import Run

TITLE = "Sparse training, time and peak memory of a step (lower is better)"
SHAPE = ["density", "seqlen_q", "block", "tokens", "layers", "batch"]
VALUES = ["cold_median_s", "speedup", "speedup_low", "speedup_high", "peak_bytes", "energy_net_j"]


def table(run: Run) -> pd.DataFrame:
    """`ms` and `peak_gib` are what is drawn; the density is SAT's, a fixed pattern has its own."""
    rows = run.select("sparse_training_step", SHAPE, VALUES, keep=["baseline"], speed=True)
    return rows.assign(ms=rows["cold_median_s"] * 1e3, peak_gib=rows["peak_bytes"] / 2**30)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "times of a step") if rows["ms"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    """Densities that have several lengths, or where none has, all."""
    # What is counted of a density varies with the length.
    asked = rows.assign(density=rows["density"].map(share).astype(float)).sort_values("seqlen_q", kind="stable")
    groups = facets(asked, ["density"], ["experiment", "block", "tokens", "layers"])
    panels = []
    for title, group in [g for g in groups if g[1]["seqlen_q"].nunique() > 1] or groups:
        panels.append((f"{title}: ms", group.assign(shown=group["ms"])))
        if group["peak_gib"].notna().any():
            panels.append((f"{title}: GiB", group.assign(shown=group["peak_gib"], missing="")))
    figure, cells = page(panels, run, TITLE, height=2.2, xlabel="sequence length")
    series = drawn(rows, "ms", run)
    for ax, group in cells:
        lines(ax, group, "seqlen_q", "shown", series)
        log_ticks(ax, group["seqlen_q"], "{:.0f}".format)
        log_scale(ax, "y")
    legend(figure, rows, series, "line")
    return figure
