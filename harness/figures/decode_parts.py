"""A decoding step by part: the products by the pruned matrices, the attention, the output layer, and what is left."""

from __future__ import annotations

import json

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.figures.panels import below, facets, page
from harness.figures.run import Run
from harness.figures.style import BLUE, GREEN, GREY, ORANGE

TITLE = "Decoding step, time by part (lower is better)"
PARTS = {
    "products": ("products by the pruned matrices", BLUE),
    "attention": ("attention", ORANGE),
    "output": ("output layer", GREEN),
    "rest": ("the rest: norms, residuals, cache, gaps", GREY),
}


def table(run: Run) -> pd.DataFrame:
    """Seconds of each part by its name: `rest` is the hot time without the others, which are timed each by itself."""
    shape = ["parameters", "sparsity", "batch", "seqlen_k"]
    rows = run.select("decode_step", shape, ["hot_median_s"], keep=["model", "parts"], speed=True)
    shares = pd.DataFrame([json.loads(parts or "{}") for parts in rows["parts"]], index=rows.index, dtype=float)
    seconds = shares.reindex(columns=[*PARTS]).mul(rows["hot_median_s"], axis=0)
    seconds["rest"] = (rows["hot_median_s"] - seconds.sum(axis=1)).clip(lower=0)
    models = pd.Categorical(rows["model"], rows["model"].unique(), ordered=True)
    return pd.concat([rows.drop(columns="parts").assign(model=models), seconds], axis=1)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "time by part") if rows["products"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    timed = rows[rows["products"].notna()]
    panels = facets(timed.assign(model=timed["model"].cat.remove_unused_categories()), ["model"], ["experiment"])
    figure, cells = page(panels, run, TITLE, columns=1, wide=True, height=1.7, xlabel="time of a step, ms")
    for ax, group in cells:
        begin = pd.Series(0.0, index=group.index)
        for part, (_, colour) in PARTS.items():
            ax.barh(range(len(group)), group[part] * 1e3, left=begin, color=colour, height=0.8)
            begin += group[part] * 1e3
        labels = [f"{row.label}, batch {row.batch:.0f}" for row in group.itertuples()]
        ax.set_yticks(range(len(group)), labels, fontsize=6 if len(group) <= 10 else 5)
        room = max(4 - len(group), 0) / 2  # few bars are no thicker, and in the middle
        ax.set_ylim(len(group) - 0.5 + room, -0.5 - room)
        ax.grid(visible=True, axis="x")
        ax.grid(visible=False, axis="y")
    below(figure, [Patch(label=label, color=colour) for label, colour in PARTS.values()])
    return figure
