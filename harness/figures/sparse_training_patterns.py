"""The blocks of the attention map that each layer keeps after the transition."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import page
from harness.figures.run import Run

TITLE = "Kept blocks by layer, queries downwards"
COLUMNS = ["task", "method", "label", "seed", "stopped", "layer", "blocks", "query_block", "key_block"]


def table(run: Run) -> pd.DataFrame:
    """A row per kept block of each training that went through a transition; one that was stopped has one row, without
    a block: what it kept is written at the end."""
    parts = []
    for training in run.trainings():
        if training.transition is None:
            continue
        if training.stopped:
            parts.append({**training.who, "stopped": training.stopped})
        for layer, pattern in enumerate(training.settings.get("patterns", ())):
            of_layer = {**training.who, "layer": layer, "blocks": len(pattern)}
            parts += [{**of_layer, "query_block": q, "key_block": k} for q, k in np.argwhere(pattern).tolist()]
    return pd.DataFrame(parts, columns=COLUMNS)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows.empty:
        return "no patterns: no training of this run went through a transition"
    return f"no patterns: {_stopped(rows)}" if rows["layer"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    lost = _stopped(rows)
    rows = rows.dropna(subset="layer").astype(dict.fromkeys(("layer", "blocks", "query_block", "key_block"), int))
    panels = [
        (f"{task}, {label}, seed {seed}\nlayer {layer}: {len(own)} of {own['blocks'].iloc[0] ** 2}", own)
        for (task, label, seed, layer), own in rows.groupby(["task", "label", "seed", "layer"])
    ]
    title = f"{TITLE}; without {lost}" if lost else TITLE
    figure, cells = page(panels, run, title, columns=4, height=1.9, wide=True)
    for axes, own in cells:
        kept = np.zeros((own["blocks"].iloc[0],) * 2)
        kept[own["query_block"], own["key_block"]] = 1
        axes.imshow(kept, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
    return figure


def _stopped(rows: pd.DataFrame) -> str:
    lost = rows[rows["stopped"].notna()].itertuples()
    return "; ".join(f"{row.task}, {row.label}, seed {row.seed}, {row.stopped}" for row in lost)
