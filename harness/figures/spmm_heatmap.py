"""SpMM speed-up as a heat map, log2 and centred at 1: layers by N and sparsity, one panel per contender of ours."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.panels import facets, page
from harness.figures.run import Run
from harness.figures.spmm import nothing, random_only, spmm_rows

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "SpMM, speed-up over dense (blue: faster)"


def table(run: Run) -> pd.DataFrame:
    rows = random_only(spmm_rows(run))
    return rows[rows["role"] == "ours"].assign(log2_speedup=np.log2(rows["speedup"]))


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    have = rows[rows.groupby("contender")["speedup"].transform("count") > 0]
    layers = list(have["layer"].cat.remove_unused_categories().cat.categories)
    panels = facets(have, ["label"], ["experiment", "dtype"])
    wide = have.groupby("label")[["n", "sparsity"]].apply(lambda own: len(own.drop_duplicates())).max() > 8
    labels = {"columns": 1 if wide else 2, "height": 0.9 + 0.16 * len(layers)}
    figure, cells = page(panels, run, TITLE, wide=wide, **labels)
    reach = max(1.0, np.nanmax(np.abs(have["log2_speedup"])))
    for ax, group in cells:
        wide_rows = group.astype({"layer": str})
        both = wide_rows.pivot(index="layer", columns=["n", "sparsity"], values=["log2_speedup", "missing"])
        values = both["log2_speedup"].sort_index(axis=1).reindex(layers).astype(float)
        words = both["missing"].reindex(index=layers, columns=values.columns).fillna("")
        shown = np.exp2(values).map("{:.2f}".format).where(values.notna(), words)
        look = {"cmap": "RdBu", "vmin": -reach, "vmax": reach, "cbar": False, "fmt": "", "annot_kws": {"fontsize": 5.5}}
        sns.heatmap(values, ax=ax, annot=shown, xticklabels=False, yticklabels=False, **look)
        ax.set(xlabel="zeros", ylabel="")
        ax.set_yticks(np.arange(len(layers)) + 0.5, layers, fontsize=6)  # not by seaborn, which draws to find overlaps
        _two_levels(ax, values.columns)
    return figure


def _two_levels(ax: Axes, columns: pd.MultiIndex) -> None:
    """Below the columns their share of zeros, and below that, N; a white line between one N and the next."""
    ax.grid(False)
    centres = np.arange(len(columns)) + 0.5
    ax.set_xticks(centres, [f"{s * 100:.4g} %" for s in columns.get_level_values("sparsity")], fontsize=6, rotation=0)
    places = pd.Series(centres, columns.get_level_values("n")).groupby(level=0)
    ax.set_xticks(places.mean(), [f"N={n:.0f}" for n in places.groups], minor=True)
    ax.tick_params(axis="x", which="minor", length=0, pad=15)
    ax.xaxis.remove_overlapping_locs = False
    for first in places.min()[1:]:
        ax.axvline(first - 0.5, color="white", linewidth=2)
