"""Shared parts of figures: a page of panels, grouped bars, words where a value is missing, legends."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from harness.figures.run import Run
from harness.figures.style import BLACK, COLUMN, PAGE, VERMILLION, Look

Panels = list[tuple[str, pd.DataFrame]]  # title, rows
MOST_PANELS = 16
TITLE_HEIGHT, FOOT, LEGEND_LINE = 0.35, 0.13, 0.152  # inches
OPEN = {"linestyle": "", "marker": "o", "markerfacecolor": "white", "markeredgecolor": BLACK, "markersize": 3.5}
_FORMATS = {
    "head_dim": "D={:.0f}",
    "seqlen_q": "S={:.0f}",
    "n": "N={:.0f}",
    "tokens": "{:.0f} tokens",
    "block": "block {:.0f}",
    "sparsity": "{:.4g} % zeros",
    "batch": "B={:.0f}",
    "num_heads": "H={:.0f}",
}
_SHORT = {
    "block_sparse_attention": "block-sparse",
    "training_step": "training step",
    "sparse_training_step": "sparse training",
    "decode_step": "decoding step",
    "opt_125m": "OPT-125M",
    "opt_1_3b": "OPT-1.3B",
    "opt_2_7b": "OPT-2.7B",
    "opt_6_7b": "OPT-6.7B",
    "opt_13b": "OPT-13B",
    "opt_30b": "OPT-30B",
    "opt_66b": "OPT-66B",
    "opt_175b": "OPT-175B",
    "bert_base": "BERT-base",
    "bert_large": "BERT-large",
    "gpt2": "GPT-2",
    "gpt2_medium": "GPT-2 medium",
    "sat_encoder": "encoder of SAT",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
}


def words(column: str, value: Any) -> str:
    """`value` of a record column as a reader wants it: "D=64", "causal", "80 % zeros"; nothing for a null."""
    if pd.isna(value):
        return ""
    if column == "causal":
        return "causal" if value else "full"
    if column == "density":
        return f"{share(value)} kept"
    text = _FORMATS.get(column, "{}").format(value * 100 if column == "sparsity" else value)
    return _SHORT.get(text, text)


def share(density: float) -> str:
    """A density, which is counted in blocks, near the round number that it was asked as: to half a per cent."""
    return f"{round(density * 200) / 200 or density:.3g}"


def facets(rows: pd.DataFrame, always: Sequence[str], varying: Sequence[str] = ()) -> Panels:
    """Split rows into panels by the columns `always`, and by those of `varying` that have several values in one of
    the panels so made. The experiment, where it varies, comes first, and is named where titles would be the same."""
    counts = rows.groupby(list(always), dropna=False, observed=True)[list(varying)].nunique(dropna=False)
    several = [column for column in varying if counts[column].max() > 1]
    by = sorted([*always, *several], key=lambda column: column != "experiment")
    named = []
    for key, group in rows.groupby(by, dropna=False, observed=True, sort=True):
        values = dict(zip(by, key, strict=True))
        experiment = values.pop("experiment", "")
        named.append((experiment, ", ".join(filter(None, map(words, values, values.values()))), group))
    times = Counter(title for _, title, _ in named)
    return [(f"{name}, {title}" if times[title] > 1 else title, group) for name, title, group in named]


def page(
    panels: Panels,
    run: Run,
    title: str,
    *,
    columns: int = 2,
    height: float = 1.6,
    wide: bool = False,
    xlabel: str = "",
    ylabel: str = "",
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A figure of panels, each `height` inches high, with their rows.

    At most `columns` stand side by side, fewer where the lines come out fuller. A single column is as wide as a
    column of text, unless `wide`; more take a page's width.
    The axis labels are written at the lower and left edge. The title says so when the run is a CPU's, and when there
    are more panels than fit.
    """
    if len(panels) > MOST_PANELS:
        title = f"{title}; {MOST_PANELS} of {len(panels)} panels, the others are in the CSV"
        panels = panels[:MOST_PANELS]
    lines = math.ceil(len(panels) / columns)
    columns = math.ceil(len(panels) / lines)
    width = PAGE if wide or columns > 1 else COLUMN
    figure = Figure(figsize=(width, lines * height + TITLE_HEIGHT), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for spare in axes[len(panels) :]:
        spare.remove()
    for place, (ax, (name, _)) in enumerate(zip(axes, panels, strict=False)):
        ax.set_title("\n".join(textwrap.fill(part, int(14 * width / columns)) for part in name.split("\n")))
        ax.set_xlabel(xlabel if place + columns >= len(panels) else "")
        ax.set_ylabel(ylabel if place % columns == 0 else "")
    sign(figure, run, title)
    return figure, [(ax, rows) for ax, (_, rows) in zip(axes, panels, strict=False)]


def sign(figure: Figure, run: Run, title: str) -> None:
    """Title, and a last line that says where, from which code and when."""
    width = figure.get_figwidth()
    if run.on_cpu:
        title = f"CPU smoke, not a GPU's speed. {title}"
    text, colour = textwrap.fill(title, int(width * 14)), VERMILLION if run.on_cpu else BLACK
    figure.suptitle(text, x=0.01, ha="left", fontsize=8, fontweight="bold", color=colour)
    place = textwrap.fill(run.place, int(width * 25), break_on_hyphens=False)
    _reserve(figure, FOOT * (1 + place.count("\n")) + 0.04)
    figure.text(0.06, 0.04, place, fontsize=5.5, color="#555555", va="bottom", transform=figure.dpi_scale_trans)


def _reserve(figure: Figure, inches: float) -> float:
    """Make the figure taller by a strip below its panels; returns the strip's lower edge in inches."""
    width, height = figure.get_size_inches()
    engine = figure.get_layout_engine()
    below = engine.get()["rect"][1] * height
    share = (below + inches) / (height + inches)
    figure.set_size_inches(width, height + inches)
    engine.set(rect=(0, share, 1, 1 - share))
    return below


def sentence(run: Run, title: str, text: str) -> Figure:
    """A figure that says in words why there is nothing to draw."""
    figure = Figure(figsize=(PAGE, 1.1), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, textwrap.fill(text, 100), ha="center", va="center", fontsize=8)
    sign(figure, run, title)
    return figure


def drawn(rows: pd.DataFrame, value: str, run: Run) -> dict[str, Look]:
    """Looks of the contenders with at least one value, in drawing order."""
    have = set(rows.loc[rows[value].notna(), "contender"])
    return {name: look for name, look in run.looks(rows).items() if name in have}


def grouped_bars(
    axes: Axes, rows: pd.DataFrame, value: str, series: Mapping[str, Look], x: str, labels: Mapping[str, str]
) -> pd.Series:
    """Bars of `value`, one group for each x; words where a value is missing. Returns where each row's bar stands.

    A group holds the contenders of `series` that have a row there, in the order of the rows, around its tick.
    `labels` maps an x, in order, to its tick label.
    """
    places = {key: place for place, key in enumerate(labels)}
    rows = rows[rows["contender"].isin(series)]
    groups = rows.groupby(x, observed=True)["contender"]
    members = groups.transform("size")
    width = 0.86 / members.max()
    at = rows[x].map(places).astype(float) + (groups.cumcount() - (members - 1) / 2) * width
    points = axes.get_position().width * axes.figure.get_figwidth() * 72 / len(places) * width
    for name, own in rows.groupby("contender"):
        axes.bar(at[own.index], own[value], width, **series[name].bar)
        for position, word in zip(at[own.index], own["missing"], strict=True):
            print_missing(axes, position, word, size=min(6.0, max(4.0, 0.95 * points)))
    axes.set_xticks(range(len(places)), list(labels.values()))
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.tick_params(axis="x", length=0)
    return at


def lines(axes: Axes, rows: pd.DataFrame, x: str, y: str, series: Mapping[str, Look]) -> None:
    """A line for each contender of `series`; in the lower left corner, who lacks values, the word for it, and the x
    where only some are missing."""
    notes = []
    for contender, look in series.items():
        own = rows[rows["contender"] == contender].sort_values(x)
        axes.plot(own[x], own[y], **look.line)
        for word, lacking in own[own["missing"] != ""].groupby("missing"):
            where = ", ".join(f"{at:.4g}" for at in lacking[x])
            notes.append(f"{look.label}: {word}" + f" at {where}" * (len(lacking) < len(own)))
    axes.text(0.02, 0.02, "\n".join(notes), fontsize=5, color="#444444", va="bottom", transform=axes.transAxes)


def print_missing(axes: Axes, x: float, word: str, *, size: float = 5.0, rise: float = 0.02) -> None:
    """Write `word`, if any, upright at `x`, `rise` (a share of the height) above the lower edge."""
    if word:
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "rotation": 90}
        axes.text(x, rise, word, fontsize=size, color="#444444", **place)


def legend(
    figure: Figure,
    rows: pd.DataFrame,
    series: Mapping[str, Look],
    kind: Literal["bar", "line", "point", "stroke"],
    extra: Iterable[Any] = (),
) -> None:
    """Below the panels: the series, `extra` handles, and contenders without any value, with the word for it."""
    make = {
        "bar": lambda look: Patch(label=look.label, **look.bar),
        "line": lambda look: Line2D([], [], label=look.label, **look.line),
        "stroke": lambda look: Line2D([], [], label=look.label, **look.stroke),
        "point": lambda look: Line2D([], [], label=look.label, **look.point),
    }[kind]
    handles: list[Any] = [*map(make, series.values()), *extra]
    absent = rows[~rows["contender"].isin(series)]
    for label, found in absent.groupby("label", sort=False)["missing"]:
        word = "/".join(sorted(set(found) - {""}))
        handles.append(Line2D([], [], linestyle="", label=f"{label}: {word}"))
    below(figure, handles)


def below(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend between the panels and the last line."""
    width = figure.get_figwidth()
    columns = min(len(handles), 4 if width > COLUMN else 2)
    while columns > 1 and _legend_width(handles, columns) > width:
        columns -= 1
    edge = _reserve(figure, LEGEND_LINE * math.ceil(len(handles) / columns) + 0.1)
    place = {"bbox_to_anchor": (width / 2, edge), "bbox_transform": figure.dpi_scale_trans, "borderaxespad": 0.2}
    figure.legend(handles=handles, loc="lower center", ncols=columns, columnspacing=1.2, **place)


def _legend_width(handles: Sequence[Any], columns: int) -> float:
    """About how wide a legend is, inches: columns are filled from the top, the first ones with one more."""
    labels = [len(handle.get_label()) for handle in handles]
    longest = [max(column) for column in np.array_split(labels, columns)]
    return sum(0.06 * letters + 0.4 for letters in longest)


def reference_line(axes: Axes, y: float, **style: Any) -> None:
    """A thin horizontal line at `y`."""
    axes.axhline(y, **{"color": BLACK, "linewidth": 0.8, "zorder": 2, **style})


def log_ticks(axes: Axes, values: pd.Series, name: Callable[[float], str]) -> None:
    """A logarithmic x axis with a tick at each of the values, called by `name`; one of those that share a name."""
    ticks = {name(value): value for value in values.astype(float).sort_values()}
    axes.set_xscale("log")
    axes.set_xticks([*ticks.values()], [*ticks])
    axes.set_xticks([], minor=True)


def log_scale(axes: Axes, which: Literal["x", "y"], *, most: int = 8) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5 times the powers of ten, or, when they are more than `most`,
    at fewer of them; between such numbers, at even steps. There are always two or more."""
    axes.set(**{f"{which}scale": "log"})
    axis, (low, high) = getattr(axes, f"{which}axis"), getattr(axes, f"get_{which}lim")()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 2:
        ticks = [
            tick for tick in MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high) if low <= tick <= high
        ]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
