"""Training loss of each method of sparse training, its transition marked, with the test accuracy it ended at."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.figures.panels import below, page
from harness.figures.run import Run
from harness.figures.style import Look, looks

WINDOW = 10
TITLE = f"Sparse training, mean loss of {WINDOW} logged steps"
COLUMNS = ["task", "source", "method", "label", "seed", "step", "phase", "loss", "transition", "test_accuracy"]


def table(run: Run) -> pd.DataFrame:
    """Smoothed losses by step of each training, the first step of its sparse phase, and its test accuracy."""
    parts = []
    for training in run.trainings():
        steps = training.steps[["step", "phase", "loss"]]
        loss = steps["loss"].rolling(WINDOW, min_periods=1).mean()
        ended = {"transition": training.transition, "test_accuracy": training.ended["test_accuracy"]}
        parts.append(steps.assign(loss=loss, **training.who, source=training.ended["source"], **ended))
    return pd.concat(parts)[COLUMNS].reset_index(drop=True) if parts else pd.DataFrame(columns=COLUMNS)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return "no trainings: this run has none, or none has ended" if rows.empty else None


def looks_of(rows: pd.DataFrame) -> dict[str, Look]:
    """Of each method; SAT's are ours."""
    labels = dict(zip(rows["method"], rows["label"], strict=True))
    return looks({name: "ours" if name.startswith("sat") else "baseline" for name in labels}, labels)


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = [(f"{task} ({source})", own) for (task, source), own in rows.groupby(["task", "source"])]
    figure, cells = page(panels, run, TITLE, height=2.2, wide=True, xlabel="step", ylabel="cross-entropy, nats")
    found = looks_of(rows)
    for axes, own in cells:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for (method, _), curve in own.groupby(["method", "seed"]):
            look = found[method]
            axes.plot(curve["step"], curve["loss"], **look.stroke)
            if curve["transition"].notna().all():
                axes.axvline(curve["transition"].iloc[0], color=look.colour, linestyle=":", linewidth=1)
    below(figure, [Line2D([], [], label=_ended(rows, method, look), **look.stroke) for method, look in found.items()])
    return figure


def _ended(rows: pd.DataFrame, method: str, look: Look) -> str:
    """The method's label with its test accuracies, mean and standard deviation over the seeds."""
    ended = rows[rows["method"] == method].drop_duplicates(["task", "seed"])
    said = []
    for _, own in ended.groupby("task"):
        spread = f" ± {own['test_accuracy'].std():.1%}" if len(own) > 1 else ""
        said.append(f"{own['test_accuracy'].mean():.1%}{spread}")
    return f"{look.label}: test {', '.join(said)}"
