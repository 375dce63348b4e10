"""Loss curves of a training by attention, and their distance from the baseline's beside its spread over the seeds."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.figures.panels import below, log_scale, page
from harness.figures.run import MISSING, Run
from harness.figures.style import PALE, looks

WINDOW = 10
TITLE = f"Training loss with each attention, mean of {WINDOW} steps"
COLUMNS = [
    *("contender", "role", "label", "baseline", "status", "reason", "step", "mean", "least", "most"),
    *("distance", "spread"),
]


def table(run: Run) -> pd.DataFrame:
    """Smoothed losses by contender and step: their mean, least and most over the seeds; `distance`, the largest from
    the baseline's curve of the same seed; and `spread`, of the baseline over its seeds. They are null from where a loss
    is no number. A contender with a training that failed has one row."""
    curves = run.curves()
    if curves.empty:
        return pd.DataFrame(columns=COLUMNS)
    parts = []
    smooth = {
        name: own.pivot(index="step", columns="seed", values="loss").rolling(WINDOW).mean().iloc[WINDOW - 1 :]
        for name, own in curves.groupby("contender")
        if own["status"].eq("ok").all()
    }
    for name, own in curves.groupby("contender", sort=False):
        said = own.sort_values("status", key=lambda status: status == "ok").iloc[0]
        said = {key: said[key] for key in ("contender", "role", "baseline", "status", "reason")}
        losses, reference = smooth.get(name), smooth.get(said["baseline"])
        values = {}
        if losses is not None:
            values = {"mean": _over_seeds(losses, "mean"), **_range(losses)}
        if losses is not None and reference is not None:
            values["distance"] = _over_seeds((losses - reference).abs(), "max")
            values["spread"] = _range(reference)["most"] - _range(reference)["least"]
        rows = pd.DataFrame(values).reset_index(names="step") if values else pd.DataFrame([{}])
        parts.append(rows.assign(**said, label=run.labels.get(name, name)))
    return pd.concat(parts).reindex(columns=COLUMNS).reset_index(drop=True)


def _range(losses: pd.DataFrame) -> dict[str, pd.Series]:
    return {"least": _over_seeds(losses, "min"), "most": _over_seeds(losses, "max")}


def _over_seeds(losses: pd.DataFrame, statistic: str) -> pd.Series:
    return losses.agg(statistic, axis=1, skipna=False)


def within(rows: pd.DataFrame) -> pd.Series:
    """By contender, the share of steps at which its distance from the baseline is at most the baseline's spread; where
    either is not known, for a loss is no number, it is not."""
    others = rows[rows["contender"] != rows["baseline"]]
    compared = others[others.groupby("contender")["spread"].transform(lambda known: known.notna().any())]
    return (compared["distance"] <= compared["spread"]).groupby(compared["contender"]).mean()


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows.empty:
        return "no loss curves: this run trains no model"
    return run.explain(rows, "loss curves") if rows["mean"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [("loss", rows), ("distance from the baseline, same seed", rows)]
    figure, cells = page(panels, run, TITLE, height=2.0, xlabel="step", ylabel="nats")
    (losses, _), (distances, _) = cells
    shares = within(rows)
    steps = run.records[run.records["op"] == "training_step"]
    found = {**looks(dict(zip(rows["contender"], rows["role"], strict=True)), run.labels), **run.looks(steps)}
    baseline = rows[rows["contender"] == rows["baseline"]].astype({"step": float})
    losses.fill_between(baseline["step"], baseline["least"], baseline["most"], color=PALE)
    lowest = rows.loc[rows["distance"] > 0, "distance"].min() / 2
    distances.fill_between(baseline["step"], lowest, baseline["spread"], color=PALE)
    handles: list[Patch | Line2D] = [Patch(color=PALE, label="the baseline's spread over its seeds")]
    for name, own in rows.groupby("contender", sort=False):
        look, status = found[name], own["status"].iloc[0]
        said = f"within the spread at {shares[name]:.0%} of the steps" if name in shares else MISSING.get(status)
        handles.append(Line2D([], [], label=f"{look.label}: {said}" if said else look.label, **look.stroke))
        losses.plot(own["step"], own["mean"], **look.stroke)
        if name in shares:
            distances.plot(own["step"], own["distance"], **look.stroke)
    log_scale(distances, "y")
    below(figure, handles)
    return figure
