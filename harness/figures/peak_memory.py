"""Peak memory of one call above its inputs, by sequence length: an attention's, or a training step's."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.attention_throughput import SHAPE, attention_facets, length_labels
from harness.figures.panels import drawn, grouped_bars, legend, log_scale, page
from harness.figures.run import Run

TITLE = "{what}, peak memory above the inputs (lower is better)"


def table(run: Run, op: str, what: str) -> pd.DataFrame:
    rows = run.select(op, [*SHAPE, "model"], ["peak_bytes"], speed=True)
    return rows.assign(peak_mib=rows["peak_bytes"] / 2**20, what=what)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["peak_bytes"].notna().any():
        return None
    if run.on_cpu:
        return "no peak memory: it is read from the GPU's allocator, and this run was on a CPU"
    return run.explain(rows, "peak memory")


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    """In GiB where the largest is beyond one."""
    of_model = rows["model"].notna().any()
    panels = attention_facets(rows, ["model"] if of_model else ["head_dim", "causal", "direction"])
    unit, scale = ("GiB", 2**10) if of_model else ("MiB", 1)
    shown = [(title, group.assign(peak=group["peak_mib"] / scale)) for title, group in panels]
    title = TITLE.format(what=rows["what"].iloc[0])
    figure, cells = page(shown, run, title, height=1.4, xlabel="sequence length", ylabel=unit)
    series = drawn(rows, "peak_mib", run)
    positive = rows.loc[rows["peak_mib"] > 0, "peak_mib"] / scale
    for ax, group in cells:
        grouped_bars(ax, group, "peak", series, "case_id", length_labels(group))
        ax.set_ylim(positive.min() / 4, positive.max() * 2)
        log_scale(ax, "y", most=5)
    legend(figure, rows, series, "bar")
    return figure
