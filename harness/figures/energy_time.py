"""Energy against time of one call, on the headline cells, with the Pareto front."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, legend, log_scale, page, words
from harness.figures.run import OPS, Run
from harness.figures.style import GREY
from harness.records import NO_ENERGY_CELL

TITLE = "Energy above idle against time, one call (lower left is better)"
SHAPE = ["model", "direction", "dtype", "head_dim", "causal", "seqlen_q", "batch", "m", "k", "n", "sparsity", "density"]
VALUES = ["energy_net_j", "energy_j", "power_w", "idle_power_w", "cold_median_s"]
_NAMED = ["model", "direction", "head_dim", "causal", "seqlen_q", "n", "sparsity", "density"]
_FRONT = {"color": GREY, "linestyle": "--", "linewidth": 0.8, "zorder": 1}


def table(run: Run) -> pd.DataFrame:
    rows = run.select(OPS, ["op", *SHAPE], VALUES, keep=["energy_quality", "energy_source"], speed=True)
    measured = rows["case_id"].isin(rows.loc[rows["energy_net_j"].notna(), "case_id"])
    return rows[measured & (rows["energy_quality"] != NO_ENERGY_CELL)] if measured.any() else rows


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["energy_net_j"].notna().any():
        return None
    reasons = rows.loc[rows["status"] == "ok", "energy_quality"].value_counts(ascending=True)
    if reasons.empty:
        return run.explain(rows, "energy")
    return "no energy: " + "; ".join(f"{reason} ({count} records)" for reason, count in reasons.items())


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [(_name(group.iloc[0]), group) for _, group in rows.groupby(["op", "case_id"], sort=False)]
    figure, cells = page(panels, run, TITLE, height=1.8, ylabel="energy above idle, J")
    series = drawn(rows, "energy_net_j", run)
    fronts = []
    for ax, group in cells:
        points = group.dropna(subset=["energy_net_j", "cold_median_s"])
        unit, scale = ("ms", 1e3) if points["cold_median_s"].max() > 1e-3 else ("us", 1e6)
        front = _front(points)
        if len(front) > 1:
            fronts = ax.plot(front["cold_median_s"] * scale, front["energy_net_j"], label="Pareto front", **_FRONT)
        for row in points.itertuples():
            look = series[row.contender].point | {"markersize": 5}
            ax.plot(row.cold_median_s * scale, row.energy_net_j, **look)
        ax.set_xlabel(f"time, {unit}")
        ax.margins(0.12)
        log_scale(ax, "x", most=4)
        log_scale(ax, "y", most=5)
    legend(figure, rows, series, "point", extra=fronts)
    return figure


def _front(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other beats in both time and energy."""
    ordered = points.sort_values(["cold_median_s", "energy_net_j"])
    return ordered[ordered["energy_net_j"] <= ordered["energy_net_j"].cummin()]


def _name(row: pd.Series) -> str:
    shape = f"{row['m']:.0f}x{row['k']:.0f}" if pd.notna(row["m"]) else ""
    given = [words("op", row["op"]), shape, *(words(column, row[column]) for column in _NAMED)]
    return ", ".join(filter(None, given))
