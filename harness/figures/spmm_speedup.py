"""SpMM speed-up over the dense baseline by sparsity: boxes and points over shapes, one panel per N."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import OPEN, drawn, facets, legend, log_scale, page, print_missing, reference_line
from harness.figures.run import Run
from harness.figures.spmm import PUBLISHED, nothing, over, published_speedups, spmm_rows, without_baseline
from harness.figures.style import BLACK, PALE, Look

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "SpMM, speed-up by share of zeros (a point is a layer)"
BOX_FROM = 4  # fewer points are drawn without a box
_THIN = {"color": BLACK, "linewidth": 0.6}


def table(run: Run) -> pd.DataFrame:
    rows = spmm_rows(run).merge(published_speedups(), on=["m", "k", "n", "sparsity", "contender"], how="left")
    return rows.sort_values(["n", "sparsity", "pattern"], kind="stable")


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    compared = without_baseline(rows)
    compared = compared.assign(level=[*map(_level, compared["sparsity"], compared["pattern"])])
    panels = facets(compared, ["n"], ["experiment", "dtype"])
    labels = {"xlabel": "zeros", "ylabel": f"speed-up over\n{over(rows, run)}"}
    figure, cells = page(panels, run, TITLE, columns=3, height=1.9, **labels)
    series = drawn(compared, "speedup", run)
    for ax, group in cells:
        levels = {level: place for place, level in enumerate(group["level"].drop_duplicates())}
        _boxes(ax, group, series, levels)
        ax.plot(group["level"].map(levels) + 0.42, group["published_a100"], **OPEN)
        reference_line(ax, 1.0)
        ax.set_xticks(range(len(levels)), list(levels))
        ax.set_xlim(-0.5, len(levels) - 0.5)
        for edge in range(1, len(levels)):
            ax.axvline(edge - 0.5, color=PALE, linewidth=0.8, zorder=0)
        log_scale(ax, "y")
    points = [Line2D([], [], label=PUBLISHED, **OPEN)] if rows["published_a100"].notna().any() else []
    legend(figure, compared, series, "point", extra=points)
    return figure


def _level(sparsity: float, pattern: str) -> str:
    return f"{sparsity * 100:.4g} %" if pattern == "random" else f"{sparsity * 100:.4g} %\n{pattern}"


def _boxes(ax: Axes, rows: pd.DataFrame, series: Mapping[str, Look], levels: Mapping[str, int]) -> None:
    width = 0.76 / len(series)
    for place, (name, look) in enumerate(series.items()):
        for level, group in rows[rows["contender"] == name].groupby("level"):
            at = levels[level] - 0.06 + (place - (len(series) - 1) / 2) * width
            values = group["speedup"].dropna()
            if len(values) >= BOX_FROM:
                ax.boxplot(
                    [values], positions=[at], widths=width * 0.8, patch_artist=True, showfliers=False,
                    manage_ticks=False, boxprops=look.bar | {"linewidth": 0.6},
                    medianprops=_THIN, whiskerprops=_THIN, capprops=_THIN,
                )  # fmt: skip
            spread = np.linspace(-0.25, 0.25, len(values)) * width if len(values) > 1 else np.zeros(len(values))
            ax.plot(at + spread, values, **{**look.point, "markersize": 3})
            if values.empty:
                print_missing(ax, at, "/".join(sorted(set(group["missing"]))))
