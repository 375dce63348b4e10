"""The Volta forward with fp16 accumulators beside the one with fp32: TFLOP/s, by the model where the run has none of
them, and errors."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures import model_bound
from harness.figures.attention_throughput import SHAPE, attention_facets, length_labels
from harness.figures.error_gate import LIMIT, PLAIN, limits_legend
from harness.figures.panels import drawn, grouped_bars, legend, page
from harness.figures.run import Run

TITLE = "Volta forward, fp32 against fp16 accumulators"
FP16 = "spark_attention_fp16acc"
FP32 = ("spark_attention_sm70", "spark_attention")  # on a V100 they are the same


def table(run: Run) -> pd.DataFrame:
    """Cases that both have run; `model_tflops` is a V100's, of the main loop."""
    rows = run.select("attention", SHAPE, ["tflops"], keep=["error_ratio", "error_limit"], speed=True)
    rows = rows[rows["direction"] == "forward"]
    fp32 = next((name for name in FP32 if name in set(rows["contender"])), "")
    rows = rows[rows["contender"].isin([fp32, FP16]) & rows["error_ratio"].notna()]
    rows = rows[rows.groupby("case_id")["contender"].transform("nunique") == 2]
    modelled = model_bound.table(run).set_index("kernel")["model_tflops"]
    variants = (rows["contender"] == FP16).map({True: "_fp16acc", False: ""})
    kernels = [f"spark_attention_forward_sm70_d{64 if dim <= 64 else 128}" for dim in rows["head_dim"]]
    return rows.assign(model_tflops=[modelled.get(kernel + v) for kernel, v in zip(kernels, variants, strict=True)])


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "errors of both accumulators") if rows.empty else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    timed = rows.groupby("contender")["tflops"].count().min() > 0
    value = "tflops" if timed else "model_tflops"
    speeds = rows.groupby(["contender", "head_dim"], as_index=False, sort=False)[value].max().assign(missing="")
    said = "TFLOP/s, highest of this run" if timed else "TFLOP/s of a V100: a model, not a measurement"
    panels = [(said, speeds)] if speeds[value].notna().any() else []
    errors = attention_facets(rows.assign(missing=""), ["head_dim", "causal"])
    panels += [(f"error / allowance, {title}", group) for title, group in errors]
    figure, cells = page(panels, run, TITLE, xlabel="sequence length")
    series = drawn(rows, "error_ratio", run)
    for ax, group in cells:
        if group is speeds:
            dims = {dim: f"head dim {dim:.0f}" for dim in sorted(group["head_dim"].unique())}
            grouped_bars(ax, group, value, series, "head_dim", dims)
            continue
        grouped_bars(ax, group, "error_ratio", series, "case_id", length_labels(group))
        ax.axhline(1.0, **PLAIN)
        ax.axhline(group["error_limit"].max(), **LIMIT)
    legend(figure, rows.assign(missing=""), series, "bar", limits_legend())
    return figure
