"""Block-sparse attention: efficiency against our dense attention, by density. The ideal, 1, is a time in proportion."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, facets, legend, lines, log_ticks, page, reference_line, share
from harness.figures.run import Run

TITLE = "Block-sparse attention, efficiency against ours dense (1 is ideal)"
DENSE = "spark_attention_dense"
SHAPE = ["block", "seqlen_q", "head_dim", "num_heads", "batch", "pattern", "softmax", "causal", "dtype"]
WHO = ["contender", "label", "role"]


def table(run: Run) -> pd.DataFrame:
    """`efficiency` = dense time x density / time, of each direction and of both together."""
    rows = run.select("block_sparse_attention", [*SHAPE, "density"], ["cold_median_s"], keep=["direction"], speed=True)
    ours = rows[rows["role"] == "ours"].astype({"direction": str})
    case = ["experiment", *SHAPE, "density"]
    both = ours.groupby([*case, *WHO], dropna=False, sort=False).filter(lambda own: own["direction"].nunique() == 2)
    summed = both.groupby([*case, *WHO], dropna=False, sort=False, as_index=False)["cold_median_s"].sum(min_count=2)
    ours = pd.concat([ours, summed.assign(direction="both", missing="")])
    ours["missing"] = ours["missing"].where(ours["direction"] != "both", "")
    case = [*case, "direction"]
    dense = ours[ours["contender"] == DENSE].set_index(case)["cold_median_s"].rename("dense_s")
    found = ours[ours["contender"] != DENSE].join(dense[~dense.index.duplicated()], on=case)
    found["efficiency"] = found["dense_s"] * found["density"] / found["cold_median_s"]
    return found[found["dense_s"].notna() | found["efficiency"].notna()].reset_index(drop=True)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return "no efficiency: no case has times of ours and of ours dense" if rows["efficiency"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    rows = rows.assign(direction=pd.Categorical(rows["direction"], ["forward", "backward", "both"], ordered=True))
    panels = facets(rows, ["direction", "block"], ["experiment", "head_dim", "causal", "softmax", "pattern", "dtype"])
    labels = {"xlabel": "share of blocks kept", "ylabel": "dense time x density / time"}
    figure, cells = page(panels, run, TITLE, columns=3, height=1.9, **labels)
    series = drawn(rows, "efficiency", run)
    for ax, group in cells:
        for (name, length), own in group.groupby(["contender", "seqlen_q"]):
            lines(ax, own, "density", "efficiency", {name: series[name]})
            sparsest = own.loc[own["density"].idxmin()]  # where lengths differ most
            ax.annotate(f"{length:.0f}", (sparsest["density"], sparsest["efficiency"]), fontsize=5, xytext=(-4, 0),
                        textcoords="offset points", ha="right", va="center")  # fmt: skip
        reference_line(ax, 1.0)
        log_ticks(ax, group["density"], share)
        ax.set_ylim(0.9 * min(1.0, group["efficiency"].min()), max(1.1, 1.1 * group["efficiency"].max()))
        ax.margins(x=0.3)
    legend(figure, rows, series, "line")
    return figure
