"""What SAT's monitor saw in the dense phase, by layer: skewness and distance of the averaged maps."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from harness.figures.panels import below, page, reference_line
from harness.figures.run import Run
from harness.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION

TITLE = "Averaged attention maps in the dense phase"
PAPER = {"min_skewness": 1.7, "max_change": 0.013}
COLUMNS = [
    *("task", "method", "label", "seed", "layer", "step", "skewness", "distance"),
    *("min_skewness", "max_change", "transition", "stopped"),
]
_COLOURS = (VERMILLION, BLUE, GREEN, ORANGE, SKY, PURPLE)


def table(run: Run) -> pd.DataFrame:
    """Skewness, and distance to the map before, of each layer on each logged step that the monitor saw."""
    parts = []
    for training in run.trainings():
        if "skewness" not in training.steps or not training.who["method"].startswith("sat"):
            continue
        seen = training.steps[["step", "skewness", "distance"]].dropna(subset="skewness")
        layers = seen["skewness"].map(lambda values: list(range(len(values))))
        seen = seen.assign(layer=layers).explode(["layer", "skewness", "distance"])
        limits = {name: training.settings.get(name) for name in PAPER}
        ends = {"transition": training.transition, "stopped": training.stopped}
        parts += seen.assign(**training.who, **limits, **ends).to_dict("records")
    return pd.DataFrame(parts, columns=COLUMNS).astype(dict.fromkeys(("skewness", "distance", *PAPER), float))


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    return "no traces: no training of this run has SAT's monitor" if rows.empty else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    panels = []
    for (task, label, seed), own in rows.groupby(["task", "label", "seed"]):
        stopped = own["stopped"].iloc[0]
        who = f"{task}, {label}, seed {seed}" + (f", {stopped}" if pd.notna(stopped) else "")
        panels.append((f"{who}\nskewness, {_limit(own, 'min_skewness', 'at least')}", own))
        panels.append((f"{who}\ndistance to the map before, {_limit(own, 'max_change', 'change below')}", own))
    figure, cells = page(panels, run, TITLE, height=1.9, xlabel="step")
    for place, (axes, own) in enumerate(cells):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for layer, line in own.groupby("layer"):
            axes.plot(line["step"], line[("skewness", "distance")[place % 2]], color=_COLOURS[layer % len(_COLOURS)])
        if place % 2 == 0:
            axes.set_yscale("symlog", linthresh=1, linscale=0.5)  # of layers far apart; it may be negative
            axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, 0), max(high, 1.1))  # two ticks at least
        if place % 2 == 0 and own["min_skewness"].notna().all():
            reference_line(axes, own["min_skewness"].iloc[0])
        if own["transition"].notna().all():
            axes.axvline(own["transition"].iloc[0], color=BLACK, linestyle=":", linewidth=1)
    layers = sorted(rows["layer"].unique())
    handles = [Line2D([], [], color=_COLOURS[n % len(_COLOURS)], label=f"layer {n}") for n in layers]
    below(figure, [*handles, Line2D([], [], color=BLACK, linestyle=":", linewidth=1, label="transition")])
    return figure


def _limit(rows: pd.DataFrame, name: str, words: str) -> str:
    limit = rows[name].iloc[0]
    if pd.isna(limit):
        return "threshold not kept"
    return f"{words} {limit:g}" if limit == PAPER[name] else f"{words} {limit:g}, not the paper's {PAPER[name]}"
