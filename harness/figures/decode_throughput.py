"""A decoding step: tokens per GPU-second, the memory that it takes, and where it was measured its energy, by batch."""

from __future__ import annotations

import json

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import drawn, facets, grouped_bars, legend, page
from harness.figures.run import Run

TITLE = "Decoding, tokens per GPU-second (higher is better), memory and energy (lower is better)"
SHAPE = ["parameters", "sparsity", "batch", "seqlen_k"]
VALUES = ["tokens_per_gpu_s", "speedup", "resident_bytes", "peak_bytes", "energy_j"]


def table(run: Run) -> pd.DataFrame:
    """`memory_gb`: weights, cache and what a call takes above them. A column `share_...` for each part of a step."""
    rows = run.select("decode_step", SHAPE, VALUES, keep=["model", "prompt", "new_tokens", "parts"], speed=True)
    memory = rows["resident_bytes"] + rows["peak_bytes"].fillna(0)
    shares = pd.DataFrame([json.loads(parts or "{}") for parts in rows["parts"]], index=rows.index).add_prefix("share_")
    found = {"memory_gb": memory / 1e9, "j_per_token": rows["energy_j"] / rows["batch"].astype(float)}
    models = pd.Categorical(rows["model"], rows["model"].unique(), ordered=True)
    return pd.concat([rows.drop(columns="parts").assign(model=models, **found), shares], axis=1)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return run.explain(rows, "tokens per second") if rows["tokens_per_gpu_s"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = []
    for title, group in facets(rows, ["model"], ["experiment", "sparsity"]):
        panels.append((f"{title}, tokens per GPU-second", group.assign(shown=group["tokens_per_gpu_s"])))
        panels.append((f"{title}, memory, GB", group.assign(shown=group["memory_gb"])))
        joules = group.assign(shown=group["j_per_token"], missing="")
        joules = joules[joules["case_id"].isin(joules.loc[joules["shown"].notna(), "case_id"])]
        if len(joules):
            panels.append((f"{title}, J per token", joules))
    figure, cells = page(panels, run, TITLE, height=1.5, xlabel="batch, tokens of context")
    series = drawn(rows, "tokens_per_gpu_s", run)
    for ax, group in cells:
        cases = group.drop_duplicates("case_id")
        labels = {case.case_id: f"{case.batch:.0f}\n{case.seqlen_k:.0f}" for case in cases.itertuples()}
        grouped_bars(ax, group, "shown", series, "case_id", labels)
    legend(figure, rows, series, "bar")
    return figure
