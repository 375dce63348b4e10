"""SpMM speed-up over the dense baseline by sparsity: boxes and points over shapes, one panel per N."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.run import Run
from harness.figures.spmm import nothing, over, spmm_rows, with_published, without_baseline
from harness.figures.spmm_boxes import boxes_by_sparsity, by_sparsity

__all__ = ["TITLE", "nothing", "plot", "table"]
TITLE = "SpMM, speed-up by share of zeros (a point is a layer)"


def table(run: Run) -> pd.DataFrame:
    return by_sparsity(with_published(spmm_rows(run)))


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    return boxes_by_sparsity(without_baseline(rows), run, TITLE, "speedup", f"speed-up over\n{over(rows, run)}")
