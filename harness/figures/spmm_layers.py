"""SpMM speed-up layer by layer at 70, 80 and 90 % zeros, beside the published points."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import OPEN, drawn, facets, grouped_bars, legend, page, reference_line
from harness.figures.run import Run
from harness.figures.spmm import (
    ELSEWHERE,
    PUBLISHED,
    TYPICAL_N,
    nothing,
    over,
    random_only,
    side_by_side,
    spmm_rows,
    with_published,
    without_baseline,
)

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "SpMM, speed-up of each layer"
SPARSITIES = (0.7, 0.8, 0.9)
MOST_BARS = 40  # of a panel beside another


def table(run: Run) -> pd.DataFrame:
    rows = random_only(spmm_rows(run))
    return with_published(rows[rows["sparsity"].isin(SPARSITIES)])


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    compared, title = without_baseline(rows), TITLE
    series = drawn(compared, "speedup", run)
    layers = {layer: layer for layer in compared["layer"].cat.remove_unused_categories().cat.categories}
    wide = len(layers) * len(series) > MOST_BARS
    if wide and compared["n"].nunique() > 1 and (compared["n"] == TYPICAL_N).any():
        compared, title = compared[compared["n"] == TYPICAL_N], f"{TITLE}; {ELSEWHERE}"
    columns = 1 if wide else side_by_side(compared)
    panels = facets(compared, ["sparsity", "n"], ["experiment", "dtype"])
    figure, cells = page(panels, run, title, columns=columns, height=1.35, wide=wide)
    for place, (ax, group) in enumerate(cells):
        at = grouped_bars(ax, group, "speedup", series, "layer", layers)
        ax.plot(at, group["published_a100"][at.index], **OPEN, zorder=5)
        reference_line(ax, 1.0)
        last = place + columns >= len(cells)
        ax.tick_params(axis="x", labelrotation=90, labelsize=6, labelbottom=last)
    figure.supylabel(f"speed-up over {over(rows, run)}", fontsize=8)
    points = [Line2D([], [], label=PUBLISHED, **OPEN)] if rows["published_a100"].notna().any() else []
    legend(figure, compared, series, "bar", extra=points)
    return figure
