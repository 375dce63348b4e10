"""Boxes and points over layers, by share of zeros: a panel for each N, and for its other patterns of zeros where they
were timed. What figures of SpMM by sparsity share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import OPEN, drawn, facets, legend, log_scale, page, print_missing, reference_line
from harness.figures.run import Run
from harness.figures.spmm import PUBLISHED
from harness.figures.style import BLACK, PALE, Look

BOX_FROM = 4  # fewer points are drawn without a box
_THIN = {"color": BLACK, "linewidth": 0.6}
_FILL = 0.3  # opacity of a box, on which its median and its points are to be seen


def boxes_by_sparsity(rows: pd.DataFrame, run: Run, title: str, value: str, ylabel: str) -> Figure:
    """`value` of each contender at each sparsity and pattern, on a logarithmic axis with a line at 1, and the
    `published` values, where the rows have that column, as open markers."""
    others = (rows["pattern"] != "random").map({False: "", True: "other patterns"})
    rows = rows.assign(level=[*map(_level, rows["sparsity"], rows["pattern"])], others=others)
    panels = facets(rows, ["n", "others"], ["experiment", "dtype"])
    panels = [(title, group) for title, group in panels if group[value].notna().any()]
    panels.sort(key=lambda panel: panel[1]["others"].any())  # whose long labels would part the lines of random zeros
    columns = 2 if rows.loc[rows["pattern"] != "random", value].notna().any() else 3
    figure, cells = page(panels, run, title, columns=columns, height=1.9, xlabel="zeros", ylabel=ylabel)
    series = drawn(rows, value, run)
    published = "published_a100" in rows and rows["published_a100"].notna().any()
    for ax, group in cells:
        levels = {level: place for place, level in enumerate(group["level"].drop_duplicates())}
        _boxes(ax, group, value, series, levels)
        if published:
            ax.plot(group["level"].map(levels) + 0.42, group["published_a100"], **OPEN)
        reference_line(ax, 1.0)
        ax.set_xticks(range(len(levels)), list(levels), rotation=90 if group["others"].any() else 0)
        ax.set_xlim(-0.5, len(levels) - 0.5)
        for edge in range(1, len(levels)):
            ax.axvline(edge - 0.5, color=PALE, linewidth=0.8, zorder=0)
        log_scale(ax, "y")
    points = [Line2D([], [], label=PUBLISHED, **OPEN)] if published else []
    legend(figure, rows, series, "point", extra=points)
    return figure


def by_sparsity(rows: pd.DataFrame, columns: Sequence[str] = ("n", "sparsity", "pattern")) -> pd.DataFrame:
    """The rows in the order in which they are drawn."""
    return rows.sort_values(list(columns), kind="stable")


def _level(sparsity: float, pattern: str) -> str:
    return f"{sparsity * 100:.4g} %" if pattern == "random" else f"{sparsity * 100:.4g} % {pattern}"


def _boxes(ax: Axes, rows: pd.DataFrame, value: str, series: Mapping[str, Look], levels: Mapping[str, int]) -> None:
    width = 0.76 / len(series)
    for place, (name, look) in enumerate(series.items()):
        for level, group in rows[rows["contender"] == name].groupby("level"):
            at = levels[level] - 0.06 + (place - (len(series) - 1) / 2) * width
            values = group[value].dropna()
            if len(values) >= BOX_FROM:
                ax.boxplot(
                    [values], positions=[at], widths=width * 0.8, patch_artist=True, showfliers=False,
                    manage_ticks=False, boxprops=look.bar | {"facecolor": (look.colour, _FILL), "linewidth": 0.6},
                    medianprops=_THIN, whiskerprops=_THIN, capprops=_THIN,
                )  # fmt: skip
            spread = np.linspace(-0.25, 0.25, len(values)) * width if len(values) > 1 else np.zeros(len(values))
            size = 2 if len(values) >= BOX_FROM else 3
            ax.plot(at + spread, values, **{**look.point, "markersize": size}, rasterized=True)  # hundreds
            if values.empty:
                print_missing(ax, at, "/".join(sorted(set(group["missing"]))))
