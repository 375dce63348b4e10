"""What the throughput model expects of our kernels' main loops, beside what bounds them and what was measured."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.figures.panels import below, page
from harness.figures.run import Run
from harness.figures.style import BLACK, PALE, VERMILLION

TITLE = "Model, not a measurement: Tensor-Core TFLOP/s of our main loops"
TFLOPS = ["bound_tflops", "model_tflops", "measured_tflops"]
COLUMNS = ["gpu", "clock_mhz", "kernel", "bound_by", "binding", *TFLOPS, "reason"]
_BOUND = {"facecolor": PALE, "edgecolor": BLACK, "linewidth": 0.3}
_MODEL = {"facecolor": VERMILLION, "edgecolor": BLACK, "linewidth": 0.3, "hatch": "////"}
_MEASURED = {"color": BLACK, "marker": "D", "linestyle": "", "markersize": 4, "zorder": 4}


def table(run: Run) -> pd.DataFrame:
    path = run.folder / "model.csv"
    return pd.read_csv(path)[COLUMNS] if path.exists() else pd.DataFrame(columns=COLUMNS)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    if rows["model_tflops"].notna().any():
        return None
    reasons = ", ".join(rows["reason"].dropna().unique())
    return f"no model: {reasons or 'this run has no model.csv'}"


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    modelled = rows.dropna(subset="model_tflops")
    panels = [
        (f"{gpu} at {clock:.0f} MHz", own) for (gpu, clock), own in modelled.groupby(["gpu", "clock_mhz"], sort=False)
    ]
    height = 0.17 * max(len(own) for _, own in panels) + 0.5
    figure, cells = page(panels, run, TITLE, columns=1, height=height, wide=True, xlabel="TFLOP/s")
    for ax, own in cells:
        places = range(len(own))
        ax.barh(places, own["bound_tflops"], 0.8, **_BOUND)
        ax.barh(places, own["model_tflops"], 0.5, **_MODEL)
        ax.plot(own["measured_tflops"], places, **_MEASURED)
        for place, row in zip(places, own.itertuples(), strict=True):
            word = row.binding if row.binding == row.bound_by else f"{row.bound_by}; binds: {row.binding}"
            ax.annotate(word, (row.bound_tflops, place), (3, 0), textcoords="offset points", va="center", size=6)
        ax.set_yticks(places, own["kernel"])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.grid(axis="x")
        ax.margins(x=0.27)
    handles = [
        Patch(label="bound: the most used resource, named, always in use", **_BOUND),
        Patch(label="model", **_MODEL),
    ]
    if modelled["measured_tflops"].notna().any():
        handles.append(Line2D([], [], label="measured in this run", **_MEASURED))
    below(figure, handles)
    return figure
