"""The blocks of the attention map that each layer keeps after the transition."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import page
from harness.figures.run import Run

TITLE = "Kept blocks by layer, queries downwards"
COLUMNS = ["task", "method", "label", "seed", "layer", "blocks", "query_block", "key_block"]


def table(run: Run) -> pd.DataFrame:
    """A row per kept block of each training that went through a transition."""
    parts = []
    for training in run.trainings():
        for layer, pattern in enumerate(training.ended["patterns"] if training.transition is not None else ()):
            queries, keys = np.nonzero(pattern)
            places = {"layer": layer, "blocks": len(pattern), "query_block": queries, "key_block": keys}
            parts.append(pd.DataFrame(places).assign(**training.who))
    return pd.concat(parts)[COLUMNS].reset_index(drop=True) if parts else pd.DataFrame(columns=COLUMNS)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return "no patterns: no training of this run went through a transition" if rows.empty else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [
        (f"{task}, {label}, seed {seed}\nlayer {layer}: {len(own)} of {own['blocks'].iloc[0] ** 2}", own)
        for (task, label, seed, layer), own in rows.groupby(["task", "label", "seed", "layer"])
    ]
    figure, cells = page(panels, run, TITLE, columns=4, height=1.9, wide=True)
    for axes, own in cells:
        kept = np.zeros((own["blocks"].iloc[0],) * 2)
        kept[own["query_block"], own["key_block"]] = 1
        axes.imshow(kept, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
    return figure
