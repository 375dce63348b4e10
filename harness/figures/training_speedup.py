"""A training step's speed-up over the baseline by sequence length, one panel per model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.attention_throughput import length_labels
from harness.figures.panels import drawn, facets, grouped_bars, legend, page, print_missing, reference_line
from harness.figures.run import Run
from harness.figures.spmm import nothing, over, without_baseline
from harness.statistics import geometric_mean

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "Training step, end-to-end speed-up (higher is better)"
SHAPE = ["model", "tokens", "dtype", "seqlen_q", "seqlen_k", "batch"]
VALUES = ["speedup", "speedup_low", "speedup_high", "cold_median_s", "energy_net_j", "peak_bytes"]


def table(run: Run) -> pd.DataFrame:
    """`lost` is the word for the baseline where it has no time: there is no speed-up then."""
    rows = run.select("training_step", SHAPE, VALUES, keep=["baseline"], speed=True)
    timeless = rows[(rows["contender"] == rows["baseline"]) & rows["cold_median_s"].isna()]
    lost = rows["case_id"].map(dict(zip(timeless["case_id"], timeless["missing"], strict=True))).fillna("")
    return rows.assign(lost=lost, tokens_per_s=rows["tokens"].astype(float) / rows["cold_median_s"])


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    compared, baseline = without_baseline(rows), over(rows, run)
    panels = facets(compared, ["model"], ["experiment", "tokens", "dtype"])
    if not run.on_cpu:
        panels = [(f"{title}\n{summary(group)}", group) for title, group in panels]
    labels = {"xlabel": "sequence length", "ylabel": f"speed-up over\n{baseline}"}
    figure, cells = page(panels, run, TITLE, height=1.8, **labels)
    series = drawn(compared, "speedup", run)
    for ax, group in cells:
        ticks = length_labels(group)
        fits = group["lost"] == ""
        grouped_bars(ax, group.assign(missing=group["missing"].where(fits, "")), "speedup", series, "case_id", ticks)
        for place, case in enumerate(ticks):
            word = group.loc[group["case_id"] == case, "lost"].iloc[0]
            print_missing(ax, place, word and f"{baseline}: {word}", size=6.0)
        reference_line(ax, 1.0)
    legend(figure, compared, series, "bar")
    return figure


def summary(rows: pd.DataFrame) -> str:
    """Mean and largest speed-up of the contender of ours that is fastest in the mean, and how many lengths it is over:
    those where the baseline has a time."""
    ours = rows[(rows["role"] == "ours") & rows["speedup"].notna()]
    lengths = rows["case_id"].nunique()
    lost = rows.loc[rows["lost"] != "", ["case_id", "lost"]].drop_duplicates()["lost"].value_counts()
    text = f"ours: no speed-up at {lengths} lengths"
    if not ours.empty:
        best = max((group["speedup"] for _, group in ours.groupby("contender")), key=geometric_mean)
        text = f"ours {geometric_mean(best):.2f}x, most {best.max():.2f}x, {len(best)} of {lengths} lengths"
    return "; ".join([text, *(f"baseline {word}: {count}" for word, count in lost.items())])
