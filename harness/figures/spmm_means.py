"""SpMM speed-up by sparsity as geometric means over the layers, with what the bytes of each format allow, the best
format of ours, and the one that the rule of impl/flash_llm/choice.py picks."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures.panels import drawn, facets, legend, lines, log_scale, page, reference_line
from harness.figures.run import Run
from harness.figures.spmm import over, random_only, spmm_rows
from harness.figures.style import BLACK, GREY, SKY

TITLE = "SpMM, geometric mean of the speed-up over the layers"
DECODING = (8, 16, 32)  # the widths of the paper, also taken together
_CASE = ["experiment", "dtype", "layer", "n", "sparsity"]
_CHOICES = {"best": ("best format of ours", "-"), "rule": ("the rule's format", "--")}
_BOUND = {"linewidth": 0.8, "linestyle": ":"}


def table(run: Run) -> pd.DataFrame:
    """One row for each contender (and `best`, `rule`), N ("8, 16, 32" for these together) and sparsity.

    `speedup` and `bound` (the baseline's bytes / its own) are geometric means over layers, `least` is the slowest
    layer's speed-up, `layers` counts them.
    """
    rows = random_only(spmm_rows(run, "tuning"))
    dense = rows[rows["contender"] == rows["baseline"]].set_index(["experiment", "case_id"])["bytes_floor"]
    keys = pd.MultiIndex.from_frame(rows[["experiment", "case_id"]])
    rows = rows.assign(bound=dense.reindex(keys).to_numpy() / rows["bytes_floor"])
    rows = pd.concat([rows, *_choices(rows)])
    widths = [(f"{n:.0f}", rows[rows["n"] == n]) for n in sorted(rows["n"].unique())]
    if set(DECODING) <= set(rows["n"]):
        widths.insert(0, (", ".join(map(str, DECODING)), rows[rows["n"].isin(DECODING)]))
    means = [_means(own).assign(columns=name) for name, own in widths or [("", rows)]]
    return pd.concat(means, ignore_index=True)


def _choices(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of each case the fastest row of ours, and the row that the rule picks, as contenders `best` and `rule`."""
    ours = rows[(rows["role"] == "ours") & rows["speedup"].notna()]
    best = ours.loc[ours.groupby(_CASE, observed=True)["speedup"].idxmax()]
    rules = [json.loads(tuning or "{}").get("format_by_rule") for tuning in ours["tuning"]]
    rule = ours[[name.endswith(f"_{rule}") for name, rule in zip(ours["contender"], rules, strict=True)]]
    return tuple(own.assign(contender=name, bound=np.nan) for name, own in (("best", best), ("rule", rule)))


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["experiment", "dtype", "baseline", "contender", "sparsity"]
    logs = rows.assign(speedup=np.log(rows["speedup"]), bound=np.log(rows["bound"]), least=rows["speedup"])
    groups = logs.groupby(by, sort=False)
    found = groups.agg(
        label=("label", "first"), role=("role", "first"), status=("status", "first"), reason=("reason", "first"),
        backend=("backend", "first"), missing=("missing", "first"), speedup=("speedup", "mean"),
        bound=("bound", "mean"), least=("least", "min"), layers=("least", "count"),
    ).reset_index()  # fmt: skip
    found[["speedup", "bound"]] = np.exp(found[["speedup", "bound"]])
    return found.assign(missing=found["missing"].where(found["speedup"].isna(), ""))


def nothing(rows: pd.DataFrame, run: Run) -> str | None:
    ours = _ours(rows)
    return run.explain(ours, "speed-ups") if ours["speedup"].isna().all() else None


def plot(rows: pd.DataFrame, run: Run) -> Figure:
    compared = _ours(rows)
    widths = pd.Categorical("N=" + compared["columns"], "N=" + compared["columns"].unique(), ordered=True)
    panels = facets(compared.assign(width=widths), ["width"], ["experiment", "dtype"])
    labels = {"xlabel": "zeros, %", "ylabel": f"speed-up over\n{over(rows, run)}"}
    figure, cells = page(panels, run, TITLE, columns=3, height=1.9, **labels)
    series = drawn(compared, "speedup", run)
    for ax, group in cells:
        group = group.assign(zeros=group["sparsity"] * 100)
        lines(ax, group, "zeros", "speedup", series)
        for contender, look in series.items():
            own = group[group["contender"] == contender]
            ax.plot(own["zeros"], own["bound"], color=look.colour, **_BOUND)
        for name, (_, dashes) in _CHOICES.items():
            own = group[group["contender"] == name]
            ax.plot(own["zeros"], own["speedup"], color=SKY, linestyle=dashes, linewidth=1.0, zorder=5)
        reference_line(ax, 1.0, color=GREY)
        ax.set_xticks(sorted(group["zeros"].unique()))
        ax.margins(x=0.06)
        log_scale(ax, "y")
    extra = [Line2D([], [], color=SKY, linestyle=dashes, label=text) for text, dashes in _CHOICES.values()]
    extra.append(Line2D([], [], color=BLACK, label="bytes of dense / of the format", **_BOUND))
    legend(figure, compared[~compared["contender"].isin(_CHOICES)], series, "line", extra=extra)
    return figure


def _ours(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["role"] == "ours"]
