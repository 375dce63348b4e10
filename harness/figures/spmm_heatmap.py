"""SpMM speed-up as a heat map, log2 and centred at 1: layers by N and sparsity, one panel per contender of ours."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import facets, page
from harness.figures.run import Run
from harness.figures.spmm import nothing, random_only, spmm_rows

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "SpMM, speed-up over the dense baseline (blue is faster, red slower)"


def table(run: Run) -> pd.DataFrame:
    rows = random_only(spmm_rows(run))
    return rows[rows["role"] == "ours"].assign(log2_speedup=np.log2(rows["speedup"]))


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    have = rows[rows.groupby("contender")["speedup"].transform("count") > 0]
    layers = list(have["layer"].cat.remove_unused_categories().cat.categories)
    panels = facets(have, ["label"], ["experiment", "dtype"])
    figure, cells = page(panels, run, TITLE, height=0.9 + 0.16 * len(layers), xlabel="N, zeros")
    reach = max(1.0, np.nanmax(np.abs(have["log2_speedup"])))
    for ax, group in cells:
        wide = group.astype({"layer": str}).pivot(
            index="layer", columns=["n", "sparsity"], values=["log2_speedup", "missing"]
        )
        values = wide["log2_speedup"].sort_index(axis=1).reindex(layers).astype(float)
        words = wide["missing"].reindex(index=layers, columns=values.columns).fillna("")
        ax.grid(False)
        ax.imshow(values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            text = words.iloc[i, j] if np.isnan(value) else f"{2**value:.2f}" if value < 0 else f"{2**value:.1f}"
            dark = abs(value) > 0.65 * reach
            ax.text(j, i, text, ha="center", va="center", fontsize=4.5, color="white" if dark else "black")
        ax.set_yticks(range(len(layers)), layers, fontsize=6)
        ticks = [f"{n:.0f}, {s * 100:.4g} %" for n, s in values]
        ax.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize=6)
    return figure
