"""Block-sparse attention: speed-up over the dense baseline by density, with the ideal 1 / density."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import drawn, facets, legend, lines, log_scale, log_ticks, page, reference_line, share
from harness.figures.run import Run
from harness.figures.spmm import nothing, over, without_baseline
from harness.figures.style import BLACK

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "Block-sparse attention, speed-up by share of blocks kept"
FACETS = ["direction", "block", "seqlen_q"]
VARYING = ["experiment", "head_dim", "num_heads", "batch", "pattern", "softmax", "causal", "dtype"]
VALUES = ["speedup", "speedup_low", "speedup_high", "cold_median_s"]
_IDEAL = {"color": BLACK, "linestyle": ":", "linewidth": 1.0}


def table(run: Run) -> pd.DataFrame:
    return run.select("block_sparse_attention", [*FACETS, *VARYING, "density"], VALUES, keep=["baseline"], speed=True)


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    compared = without_baseline(rows)
    panels = facets(compared, FACETS, VARYING)
    ylabel = f"speed-up over\n{over(rows, run)}"
    labels = {"xlabel": "share of blocks kept", "ylabel": ylabel}
    figure, cells = page(panels, run, TITLE, columns=4 if len(panels) > 8 else 2, height=1.7, **labels)
    series = drawn(compared, "speedup", run)
    for ax, group in cells:
        density = group["density"].drop_duplicates().sort_values()
        ax.plot(density, 1 / density, **_IDEAL)
        lines(ax, group, "density", "speedup", series)
        reference_line(ax, 1.0)
        log_ticks(ax, density, share)
        ax.margins(x=0.08)
        log_scale(ax, "y")
    legend(figure, compared, series, "line", extra=[Line2D([], [], label="ideal: 1 / density", **_IDEAL)])
    return figure
