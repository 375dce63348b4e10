"""Attention TFLOP/s: grouped bars over sequence length, one panel per head dim and mask."""

from __future__ import annotations

from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import Panels, drawn, facets, grouped_bars, legend, page
from harness.figures.run import Run

TITLE = "Attention {direction}, TFLOP/s (higher is better)"
SHAPE = ["direction", "dtype", "head_dim", "causal", "seqlen_q", "seqlen_k", "batch", "num_heads", "num_heads_kv"]
VALUES = ["tflops", "cold_median_s", "cold_q1_s", "cold_q3_s"]


def table(run: Run, direction: Literal["forward", "backward"]) -> pd.DataFrame:
    rows = run.select("attention", SHAPE, VALUES, speed=True)
    return rows[rows["direction"] == direction]


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "attention times") if rows["tflops"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    title = TITLE.format(direction=rows["direction"].iloc[0])
    panels = attention_facets(rows, ["head_dim", "causal"])
    figure, cells = page(panels, run, title, xlabel="sequence length", ylabel="TFLOP/s")
    series = drawn(rows, "tflops", run)
    for ax, group in cells:
        grouped_bars(ax, group, "tflops", series, "case_id", length_labels(group))
    legend(figure, rows, series, "bar")
    return figure


def attention_facets(rows: pd.DataFrame, always: list[str]) -> Panels:
    """Panels by the columns `always`, and by experiment, dtype, heads and their grouping where those vary."""
    heads = [f"{q / kv:.0f} query heads per key head" for q, kv in zip(rows.num_heads, rows.num_heads_kv, strict=True)]
    return facets(rows.assign(grouping=heads), always, ["experiment", "dtype", "num_heads", "grouping"])


def length_labels(rows: pd.DataFrame) -> dict[str, str]:
    """Tick label by case: its length, both lengths where they differ, and the batch where the length is not enough."""
    cases = rows.drop_duplicates("case_id").sort_values(["seqlen_q", "seqlen_k", "batch", "case_id"])
    same = cases.duplicated(["seqlen_q", "seqlen_k"], keep=False)
    labels = {}
    for case, ambiguous in zip(cases.itertuples(), same, strict=True):
        text = f"{case.seqlen_q:.0f}" if case.seqlen_q == case.seqlen_k else f"{case.seqlen_q:.0f}, {case.seqlen_k:.0f}"
        labels[case.case_id] = f"{text}\nB={case.batch:.0f}" if ambiguous else text
    return labels
