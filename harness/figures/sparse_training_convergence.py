"""Training loss of each method of sparse training, its transition marked, with the test accuracy it ended at, or where
it was stopped."""

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
COLUMNS = [
    *("task", "source", "method", "label", "seed", "step", "phase", "loss", "transition"),
    *("test_accuracy", "dev_accuracy", "stopped"),
]


def table(run: Run) -> pd.DataFrame:
    """Smoothed losses by step of each training, the first step of its sparse phase, its test accuracy, the last
    one on the dev split, and where it was stopped."""
    parts = []
    for training in run.trainings():
        steps = training.steps[["step", "phase", "loss"]]
        loss = steps["loss"].rolling(WINDOW, min_periods=1).mean()
        accuracies = {"test_accuracy": training.settings.get("test_accuracy"), "dev_accuracy": training.dev_accuracy}
        ends = {"transition": training.transition, "stopped": training.stopped, **accuracies}
        found = steps.assign(loss=loss, **training.who, source=training.settings["source"], **ends)
        parts += found.to_dict("records")
    return pd.DataFrame(parts, columns=COLUMNS)


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return "no trainings: this run has none" if rows.empty else None


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
            if curve["stopped"].notna().all():
                axes.plot(curve["step"].iloc[-1], curve["loss"].iloc[-1], "x", color=look.colour)
            if curve["transition"].notna().all():
                axes.axvline(curve["transition"].iloc[0], color=look.colour, linestyle=":", linewidth=1)
    below(figure, [Line2D([], [], label=_ended(rows, method, look), **look.stroke) for method, look in found.items()])
    return figure


def _ended(rows: pd.DataFrame, method: str, look: Look) -> str:
    """The method's label with its test accuracies, mean and standard deviation over the seeds, and for runs that have
    none where they were stopped."""
    ended = rows[rows["method"] == method].drop_duplicates(["task", "seed"])
    said = []
    for task, own in ended.groupby("task"):
        where = f"{task} " * (rows["task"].nunique() > 1)
        tested = own["test_accuracy"].dropna().astype(float)
        if len(tested):
            spread = f" ± {tested.std():.1%}" if len(tested) > 1 else ""
            said.append(f"{where}test {tested.mean():.1%}{spread}")
        for stopped, dev in own.loc[own["stopped"].notna(), ["stopped", "dev_accuracy"]].to_numpy():
            said.append(f"{where}{stopped}" + (f", dev then {dev:.1%}" if pd.notna(dev) else ""))
    return f"{look.label}: {'; '.join(said)}"
