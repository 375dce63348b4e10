"""SpMM time over sparsity, with the time each format's bytes take at the bandwidth the copy control reached."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import MOST_PANELS, drawn, facets, legend, lines, log_scale, page
from harness.figures.run import Run
from harness.figures.spmm import ELSEWHERE, TYPICAL_N, random_only, side_by_side, spmm_rows
from harness.figures.style import BLACK

TITLE = "SpMM, time by share of zeros (lower is better)"


def table(run: Run) -> pd.DataFrame:
    rows = random_only(spmm_rows(run))
    bandwidth = (rows["gbps"] / rows["bandwidth_fraction"]).median() * 1e9  # what the copy control reached
    return rows.assign(floor_s=rows["bytes_floor"] / bandwidth)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "SpMM times") if rows["cold_median_s"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    shown = rows.assign(zeros=rows["sparsity"] * 100, us=rows["cold_median_s"] * 1e6, floor_us=rows["floor_s"] * 1e6)
    panels, title = facets(shown, ["layer", "n"], ["experiment", "dtype"]), TITLE
    if len(panels) > MOST_PANELS and (shown["n"] == TYPICAL_N).any():
        shown, title = shown[shown["n"] == TYPICAL_N], f"{TITLE}; {ELSEWHERE}"
        panels = facets(shown, ["layer", "n"], ["experiment", "dtype"])
    labels = {"xlabel": "zeros, %", "ylabel": "time, us"}
    figure, cells = page(panels, run, title, columns=side_by_side(shown), height=1.45, **labels)
    series = drawn(rows, "cold_median_s", run)
    for ax, group in cells:
        lines(ax, group, "zeros", "us", series)
        for contender, look in series.items():
            own = group[group["contender"] == contender]
            ax.plot(own["zeros"], own["floor_us"], color=look.colour, linewidth=0.8, linestyle=":")
        ax.set_xticks(sorted(group["zeros"].unique()))
        ax.margins(x=0.06, y=0.12)
        log_scale(ax, "y")
    floor = Line2D([], [], color=BLACK, linestyle=":", linewidth=0.8, label="bytes of the format / copy bandwidth")
    legend(figure, rows, series, "line", extra=[floor] if rows["floor_s"].notna().any() else [])
    return figure
