"""Error of every case against the gate: error / allowance at factor 1, with the limits for outputs and gradients."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import below, facets, log_scale, page
from harness.figures.run import OPS, Run
from harness.figures.style import BLACK, VERMILLION

TITLE = "Largest error of each case, in units of plain fp16's own error"
LONG = 32  # characters of a name that leave no room for a second column
LOWEST, HIGHEST = 0.02, 100.0  # errors beyond are drawn at the edge
LIMIT, PLAIN = {"color": VERMILLION, "linewidth": 1.0}, {"color": BLACK, "linewidth": 0.8, "linestyle": ":"}
_WRONG = {"linestyle": "", "marker": "x", "color": VERMILLION, "markersize": 5, "zorder": 5}


def table(run: Run) -> pd.DataFrame:
    errors = ["error_ratio", "error_limit", "error_max"]  # kept for incorrect records too
    return run.select(OPS, ["op", "direction", "dtype"], [], keep=errors, speed=False)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "errors") if rows["error_ratio"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = facets(rows[rows["error_ratio"].notna()], ["op", "direction"])
    tallest = max(group["contender"].nunique() for _, group in panels)
    longest = max(map(len, rows["label"]))
    shape = {"columns": 1 if longest > LONG else 2, "wide": True, "height": 0.5 + 0.15 * tallest}
    figure, cells = page(panels, run, TITLE, xlabel="error / allowance", **shape)
    incorrect = []
    for ax, group in cells:
        series = run.looks(group)
        for place, (contender, look) in enumerate(series.items()):
            own = group[group["contender"] == contender]
            wrong = (own["status"] == "incorrect").to_numpy()
            x = own["error_ratio"].clip(LOWEST, HIGHEST).to_numpy()
            y = place + (np.linspace(-0.3, 0.3, len(own)) if len(own) > 1 else np.zeros(1))
            ax.plot(x[~wrong], y[~wrong], **{**look.point, "markersize": 2.5}, rasterized=True)  # a point a row
            if wrong.any():
                incorrect = ax.plot(x[wrong], y[wrong], label="incorrect", **_WRONG)
        for limit in group["error_limit"].dropna().unique():
            ax.axvline(limit, **LIMIT)
        ax.axvline(1.0, **PLAIN)
        ax.set_xlim(LOWEST * 0.8, max(6.0, min(HIGHEST, group["error_ratio"].max()) * 1.4))
        log_scale(ax, "x", most=4)
        ax.set_yticks(range(len(series)), [look.label for look in series.values()], fontsize=6)
        ax.set_ylim(len(series) - 0.5, -0.5)
        ax.grid(axis="x")
    below(figure, [*limits_legend(), *incorrect])
    return figure


def limits_legend() -> list[Line2D]:
    """What the lines at 1 and at the limit are."""
    return [
        Line2D([], [], label="plain fp16's own error", **PLAIN),
        Line2D([], [], label="limit of the gate: 2 for outputs, 3 for gradients", **LIMIT),
    ]
