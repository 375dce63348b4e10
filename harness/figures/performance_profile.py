"""Performance profile (Dolan and More, 2002): share of cases within a factor of the fastest contender."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, facets, legend, log_scale, page
from harness.figures.run import OPS, Run

TITLE = "Share of cases within a factor of the fastest"
FACTORS = (1.0, 16.0)


def table(run: Run) -> pd.DataFrame:
    rows = run.select(OPS, ["op", "direction", "dtype"], ["cold_median_s"], speed=True)
    best = rows.groupby(["experiment", "case_id"])["cold_median_s"].transform("min")
    return rows.assign(factor=rows["cold_median_s"] / best)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "times") if rows["factor"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [
        (f"{name}, {group[['experiment', 'case_id']].drop_duplicates().shape[0]} cases", group)
        for name, group in facets(rows, ["op", "direction"], ["dtype"])
        if group["factor"].notna().any()
    ]
    labels = {"xlabel": "time / fastest time", "ylabel": "share of cases"}
    figure, cells = page(panels, run, TITLE, columns=3, **labels)
    series = drawn(rows, "factor", run)
    for ax, group in cells:
        for contender, look in series.items():
            factors = group.loc[group["contender"] == contender, "factor"]
            if factors.notna().any():
                known = np.sort(factors.dropna())
                share = np.arange(len(known) + 1) / len(factors)
                steps = np.concatenate([FACTORS[:1], known, FACTORS[1:]])
                ax.step(steps, [*share, share[-1]], where="post", **look.stroke)
        ax.set(xlim=FACTORS, ylim=(0, 1.03))
        log_scale(ax, "x")
    legend(figure, rows, series, "stroke")
    return figure
