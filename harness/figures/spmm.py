"""What the SpMM figures share: their rows, names of layers, and the published points."""

from __future__ import annotations

import pandas as pd

from harness.figures.run import Run
from harness.paths import PAPER

SHAPE = ["pattern", "dtype", "m", "k", "n", "sparsity"]
VALUES = [
    *("speedup", "speedup_low", "speedup_high", "cold_median_s"),
    *("bytes_floor", "gbps", "bandwidth_fraction", "conversion_s"),
]
PUBLISHED = "Flash-LLM as published (A100)"
TYPICAL_N = 16  # shown alone where every N would take more room than there is
ELSEWHERE = "other N are in the CSV"


def spmm_rows(run: Run, *keep: str) -> pd.DataFrame:
    """SpMM rows with their `layer` ("30B fc1", or "m x k" for one that the paper does not have): an ordered category,
    the paper's layers first; and the columns `keep`."""
    rows = run.select("spmm", SHAPE, VALUES, keep=["baseline", *keep], speed=True)
    known, sizes = _layers(), list(zip(rows["m"], rows["k"], strict=True))
    names = {size: known.get(size, f"{size[0]:.0f}x{size[1]:.0f}") for size in [*known, *sorted(set(sizes))]}
    layers = pd.Categorical([names[size] for size in sizes], list(names.values()), ordered=True)
    return rows.assign(layer=layers.remove_unused_categories())


def random_only(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows whose zeros are anywhere, as the paper's are."""
    return rows[rows["pattern"] == "random"]


def without_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the contenders that are compared: the baseline's own speed-up is 1 by definition."""
    return rows[rows["contender"] != rows["baseline"]]


def over(rows: pd.DataFrame, run: Run) -> str:
    """Labels of the baselines that the speed-ups are taken against."""
    return ", ".join(sorted({run.labels[name] for name in rows["baseline"]}))


def side_by_side(rows: pd.DataFrame) -> int:
    """Panels in a line: one for each N, or three where that is not several."""
    return counted if 1 < (counted := rows["n"].nunique()) <= 4 else 3


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    """Why there are no speed-ups, or None."""
    compared = without_baseline(rows)
    return run.explain(compared, "speed-ups") if compared["speedup"].isna().all() else None


def with_published(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `published_a100`, Flash-LLM's published speed-up over cuBLAS, which is of random zeros."""
    points = pd.read_csv(PAPER / "flash_llm_kernel_a100.csv")
    wide = points.pivot(index=["m", "k", "n", "sparsity"], columns="system", values="tflops")
    ratio = (wide["Flash-LLM"] / wide["cuBLAS"]).rename("published_a100").reset_index()
    ratio = ratio.assign(contender="flash_llm_tiled_csl", pattern="random")
    return rows.merge(ratio, on=["m", "k", "n", "sparsity", "contender", "pattern"], how="left")


def _layers() -> dict[tuple[int, int], str]:
    layers = pd.read_csv(PAPER / "opt_layers.csv")
    return {(row.m, row.k): f"{row.model.removeprefix('OPT-')} {row.layer}" for row in layers.itertuples()}
