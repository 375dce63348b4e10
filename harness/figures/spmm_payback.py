"""After how many multiplications a conversion is paid back, layer by layer at 70, 80 and 90 % zeros."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, facets, legend, log_scale, page, print_missing
from harness.figures.run import Run
from harness.figures.spmm import random_only, side_by_side, spmm_rows
from harness.figures.spmm_layers import SPARSITIES

TITLE = "SpMM, multiplications until the conversion of the weight is paid back (lower is better)"
NEVER = "never"
_HEADROOM = 0.25  # share of the height above the points, for that word
_ONE_WEIGHT = ["contender", "dtype", "m", "k", "sparsity"]


def table(run: Run) -> pd.DataFrame:
    """A conversion's time is the median over N: the first of a process also waits for PyTorch's kernels to load."""
    rows = random_only(spmm_rows(run))
    rows = rows[rows["sparsity"].isin(SPARSITIES)]
    dense = rows[rows["contender"] == rows["baseline"]]
    times = dense.set_index(["experiment", "case_id"])["cold_median_s"]
    keys = pd.MultiIndex.from_frame(rows[["experiment", "case_id"]])
    gain = times.reindex(keys).to_numpy() - rows["cold_median_s"]
    conversion = rows.groupby(_ONE_WEIGHT)["conversion_s"].transform("median")
    rows = rows.assign(gain_s=gain, payback=(conversion / gain).where(gain > 0))
    rows["missing"] = rows["missing"].mask(gain <= 0, NEVER)
    return rows[conversion.notna()]


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["payback"].notna().any():
        return None
    if (rows["missing"] == NEVER).any():
        return "no conversion is paid back: the dense product is the faster one everywhere"
    return run.explain(rows, "times of a conversion and a multiplication")


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = facets(rows, ["sparsity", "n"], ["experiment", "dtype"])
    columns = side_by_side(rows)
    figure, cells = page(panels, run, TITLE, columns=columns, height=1.35)
    series = drawn(rows, "payback", run)
    layers = {layer: place for place, layer in enumerate(rows["layer"].cat.remove_unused_categories().cat.categories)}
    for number, (ax, group) in enumerate(cells):
        for place, (contender, look) in enumerate(series.items()):
            own = group[group["contender"] == contender]
            at = own["layer"].map(layers).astype(float) + (place - (len(series) - 1) / 2) * 0.25
            ax.plot(at, own["payback"], **look.point)
            for position, word in zip(at, own["missing"], strict=True):
                print_missing(ax, position, word, rise=1.02 - _HEADROOM if word == NEVER else 0.02)
        ax.set_xticks(range(len(layers)), layers)
        ax.set_xlim(-0.5, len(layers) - 0.5)
        ax.tick_params(axis="x", labelrotation=90, labelsize=6, labelbottom=number + columns >= len(cells))
        if group["payback"].notna().any():
            if (group["missing"] == NEVER).any():
                ax.set_yscale("log")
                low, high = ax.get_ylim()
                ax.set_ylim(top=high * (high / low) ** (_HEADROOM / (1 - _HEADROOM)))
            log_scale(ax, "y")
    figure.supylabel("multiplications", fontsize=8)
    legend(figure, rows, series, "point")
    return figure
