"""Peak memory of one attention call above its inputs, by sequence length."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.attention_throughput import SHAPE, attention_facets, length_labels
from harness.figures.panels import drawn, grouped_bars, legend, log_scale, page
from harness.figures.run import Run

TITLE = "Attention, peak memory above the inputs (lower is better)"


def table(run: Run) -> pd.DataFrame:
    rows = run.select("attention", SHAPE, ["peak_bytes"], speed=True)
    return rows.assign(peak_mib=rows["peak_bytes"] / 2**20)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["peak_bytes"].notna().any():
        return None
    if run.on_cpu:
        return "no peak memory: it is read from the GPU's allocator, and this run was on a CPU"
    return run.explain(rows, "peak memory")


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = attention_facets(rows, ["head_dim", "causal", "direction"])
    figure, cells = page(panels, run, TITLE, height=1.4, xlabel="sequence length", ylabel="MiB")
    series = drawn(rows, "peak_mib", run)
    positive = rows.loc[rows["peak_mib"] > 0, "peak_mib"]
    for ax, group in cells:
        grouped_bars(ax, group, "peak_mib", series, "case_id", length_labels(group))
        ax.set_ylim(positive.min() / 4, positive.max() * 2)
        log_scale(ax, "y", most=5)
    legend(figure, rows, series, "bar")
    return figure
