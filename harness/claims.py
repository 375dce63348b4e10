"""Published claims against a run's records: what was measured, and the verdict.

The claims are data (results/paper/claims.yaml). A verdict follows from the records alone: a speed claim needs our
kernel, timed on a GPU, beside the claim's baseline on the same cases.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.figures.run import ON_GPU, Run
from harness.paths import PAPER
from harness.statistics import geometric_mean, ratio_by_rounds

REPRODUCED, PARTLY = 0.9, 0.5  # share of the published gain, on a logarithmic scale
Verdict = Literal["reproduced", "partly", "not", "not measurable here"]
_STATISTICS = {"geometric mean": geometric_mean, "maximum": max}
_KEY = ["experiment", "case_id"]


class Measure(BaseModel):
    """What a run is held against the claim with: the baseline's time or memory / ours, over the records of `where`; of
    several baselines, over the cases of all."""

    model_config = ConfigDict(extra="forbid")

    op: str
    ours: str
    baseline: str | list[str]
    where: dict[str, Any]
    points: int = Field(gt=0)
    of: Literal["time", "peak memory"] = "time"

    @property
    def baselines(self) -> list[str]:
        return [self.baseline] if isinstance(self.baseline, str) else self.baseline

    @property
    def column(self) -> str:
        return "cold_median_s" if self.of == "time" else "peak_bytes"


class Accuracy(BaseModel):
    """What a run's trainings are held against the claim with: the test accuracy of `ours` above that of `others`."""

    model_config = ConfigDict(extra="forbid")

    ours: str
    others: list[str] = Field(min_length=1)


class Claim(BaseModel):
    """A published number, its conditions, and either how a run judges it or why it cannot."""

    model_config = ConfigDict(extra="forbid")

    id: str
    system: str
    statistic: Literal["geometric mean", "maximum", "better accuracy"]
    value: float | None
    gpu: str
    condition: str
    source: str
    measure: Measure | None = None
    accuracy: Accuracy | None = None
    unmeasured: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Claim:
        if sum(way is not None for way in (self.measure, self.accuracy, self.unmeasured)) != 1:
            raise ValueError(f"{self.id}: give one of measure, accuracy and unmeasured")
        return self

    @property
    def published(self) -> str:
        if self.value is None:
            return "better" if self.statistic == "better accuracy" else "given, not confirmed"
        return f"{self.value:.2f}x {self.statistic}"


class ClaimRow(BaseModel):
    """A row of claims.csv."""

    claim_id: str = Field(description="stable name of the claim")
    published: str = Field(description="the published number")
    condition: str = Field(description="what it was measured on and against, and on which GPU this run was")
    measured: str = Field("", description="the same quantity in this run, its range and how many points; else empty")
    verdict: Verdict = Field(
        description=f"reproduced: at least {REPRODUCED:.0%} of the published gain (ratio of logarithms) over the whole "
        f"sweep; partly: at least {PARTLY:.0%}, or part of the sweep; not: less; not measurable here: no such records"
    )
    reason: str = Field(description="why this verdict")
    system: str = Field(description="the system the claim is about")
    source: str = Field(description="where it was published")


def load_claims() -> list[Claim]:
    return [Claim.model_validate(entry) for entry in yaml.safe_load((PAPER / "claims.yaml").read_text())]


def write_claims(config: str | Path) -> None:
    """Write results/<run>/claims.csv, and the same table as claims.html.

    Raises ConfigError for a bad config, MachineError when the run has no records.
    """
    run = Run.open(config)
    table = claims_table(run)
    table.to_csv(run.folder / "claims.csv", index=False, lineterminator="\n")
    style = "<style>body{font:14px sans-serif}td,th{padding:4px 8px;text-align:left;vertical-align:top}</style>"
    html = table.to_html(index=False, border=0)
    head = f'<!DOCTYPE html><meta charset="utf-8"><title>Claims, run {run.name}</title>{style}'
    (run.folder / "claims.html").write_text(f"{head}<p>{run.place}</p>{html}\n")


def claims_table(run: Run) -> pd.DataFrame:
    """A `ClaimRow` for each published claim."""
    return pd.DataFrame([judge(claim, run).model_dump() for claim in load_claims()])


def judge(claim: Claim, run: Run) -> ClaimRow:
    """The verdict of a run on a claim, from the records alone."""

    def row(verdict: Verdict, reason: str, measured: str = "") -> ClaimRow:
        here = "on a CPU" if run.on_cpu else f"on {run.device_names}, cold times"
        condition = f"{claim.condition}; published on {claim.gpu}, this run {here}"
        fixed = {"claim_id": claim.id, "published": claim.published, "system": claim.system, "source": claim.source}
        return ClaimRow(condition=condition, verdict=verdict, reason=reason, measured=measured, **fixed)

    if claim.unmeasured:
        return row("not measurable here", claim.unmeasured)
    if run.on_cpu:
        return row("not measurable here", "the claim needs a GPU; this run was on a CPU")
    if claim.accuracy:
        return row(*_judge_accuracy(claim.accuracy, run))
    sides = {name: _points(run, claim.measure, name) for name in (claim.measure.ours, *claim.measure.baselines)}
    for name, points in sides.items():
        if points.empty:
            return row("not measurable here", f"the run has no {name} on the claim's sweep")
    ours, *baselines = sides.values()
    for name, points in sides.items():
        if not points["timed"].any():
            return row("not measurable here", f"no {claim.measure.of} of {name}: {_losses(points)}")
    pairs = [_ratios(run, ours[ours["timed"]], each[each["timed"]], claim.measure.of) for each in baselines]
    by_baseline, apart = [ratios for ratios, _ in pairs], sum(count for _, count in pairs)
    ratios = pd.concat(by_baseline)
    if ratios.empty:
        return row("not measurable here", "ours and the baseline have no case in common")
    value = _STATISTICS[claim.statistic](list(ratios))
    measured = f"{value:.2f}x {claim.statistic} of {len(ratios)} ({ratios.min():.2f}x to {ratios.max():.2f}x)"
    if len(baselines) > 1:
        named = zip(claim.measure.baselines, by_baseline, strict=True)
        each = [f"{run.labels.get(name, name)} {own.min():.2f}x to {own.max():.2f}x" for name, own in named if len(own)]
        measured += f": {', '.join(each)}"
    if claim.value is None:
        return row("not measurable here", "the published value could not be confirmed", measured)
    share = math.log(value) / math.log(claim.value)
    verdict: Verdict = "reproduced" if share >= REPRODUCED else "partly" if share >= PARTLY else "not"
    reasons = [f"{share:.0%} of the published gain" if value > 1 else "no gain: ours is not better than the baseline"]
    if len(ours) < claim.measure.points:
        reasons.append(f"the run has {len(ours)} of the {claim.measure.points} points")
    if not ours["timed"].all():
        reasons.append(f"ours has no {claim.measure.of} on some: {_losses(ours)}")
    if verdict == "reproduced" and len(reasons) > 1:
        verdict = "partly"
    if apart:
        reasons.append(f"{apart} of the ratios are of medians of two panels, which were not measured in turns")
    for baseline in baselines:
        if not baseline["timed"].all():
            reasons.append(f"left out, for the baseline has no {claim.measure.of} there: {_losses(baseline)}")
    return row(verdict, "; ".join(reasons), measured)


def _judge_accuracy(measure: Accuracy, run: Run) -> tuple[Verdict, str, str]:
    """Verdict, reason and what was measured. At most partly: the published tasks need downloads and longer runs."""
    trainings = [training for training in run.trainings() if training.ended]
    ended = pd.DataFrame([{**training.settings, "label": training.who["label"]} for training in trainings])
    if ended.empty or measure.ours not in set(ended["method"]):
        return "not measurable here", f"the run has no training by {measure.ours} that ended", ""
    better, said = [], []
    for (task, source), own in ended.groupby(["task", "source"]):
        means = own.groupby("method")["test_accuracy"].mean()
        others = means[[name for name in measure.others if name in means]]
        if measure.ours not in means or others.empty:
            continue
        better.append(means[measure.ours] > others.max())
        labels = dict(zip(own["method"], own["label"], strict=True))
        rest = ", ".join(f"{labels[name]} {value:.1%}" for name, value in others.items())
        said.append(f"{task} ({source}) {means[measure.ours]:.1%} against {rest}")
    if not better:
        return "not measurable here", f"the run has no training of a task by {measure.ours} and by another", ""
    seeds, steps = ended["seed"].nunique(), ended["steps"].max()
    reason = f"best on {sum(better)} of {len(better)} tasks, after {steps} steps, {seeds} seed{'s' * (seeds > 1)}"
    return "partly" if all(better) else "not", reason, "; ".join(said)


def _points(run: Run, measure: Measure, contender: str) -> pd.DataFrame:
    """The contender's records on the claim's sweep, each case once; `timed` where its time is a speed on a GPU.

    Of two panels that share a case it is the first by name that was timed, as in figures, whatever their order.
    """
    rows = run.records[(run.records["op"] == measure.op) & (run.records["contender"] == contender)]
    layers = pd.read_csv(PAPER / "opt_layers.csv").set_index(["m", "k"]).index
    rows = rows.assign(
        tokens=rows["batch"] * rows["seqlen_q"],
        hidden=rows["num_heads"] * rows["head_dim"],
        paper_layer=pd.MultiIndex.from_frame(rows[["m", "k"]]).isin(layers),
    )
    for column, wanted in measure.where.items():
        rows = rows[rows[column].isin(wanted if isinstance(wanted, list) else [wanted])]
    kinds = ("kernel",) if rows["role"].eq("ours").any() else ON_GPU
    timed = (rows["status"] == "ok") & rows["backend"].isin(kinds) & rows[measure.column].notna()
    rows = rows.assign(timed=timed).sort_values(["timed", "panel"], ascending=[False, True], kind="stable")
    return rows.drop_duplicates(_KEY).sort_index()


def _losses(points: pd.DataFrame) -> str:
    lost = points[~points["timed"]]
    reasons = lost["reason"].fillna(lost["backend"]).fillna("no reason given")
    # torch names sizes, which differ from row to row
    reasons = reasons.astype(str).str.replace(r"\. Tried to allocate .*", "", regex=True)
    counts = lost.groupby(["status", reasons]).size()
    return ", ".join(f"{count} x {status} ({reason})" for (status, reason), count in counts.items())


def _ratios(run: Run, ours: pd.DataFrame, baseline: pd.DataFrame, of: str) -> tuple[pd.Series, int]:
    """The baseline's time or memory / ours of each common case, and how many of them are of two panels.

    Of times, the record's own where it is over this baseline, else from the samples of a panel that has both, each as
    the median over the rounds. Rounds of two panels do not belong together: there it is the ratio of the medians.
    """
    theirs, own = baseline["contender"].iloc[0], ours["contender"].iloc[0]
    pairs = ours.merge(baseline, on=_KEY, suffixes=("", "_of_baseline"))
    if of == "peak memory":
        return (pairs["peak_bytes_of_baseline"] / pairs["peak_bytes"]).astype(float), 0
    if (pairs["baseline"] == theirs).all() and pairs["speedup"].notna().all():
        return pairs["speedup"], 0
    keep = [("contender", "in", [theirs, own]), ("case_id", "in", [*pairs["case_id"]])]
    keep += [("metric", "==", "cold"), ("accepted", "==", True)]
    columns = [*_KEY, "panel", "contender", "round"]
    samples = pd.read_parquet(run.folder / "samples.parquet", columns=[*columns, "seconds"], filters=keep)
    times: dict[tuple, dict] = {}  # of each case in a panel: the median of each contender's rounds
    for (*key, contender, number), median in samples.groupby(columns)["seconds"].median().items():
        times.setdefault(tuple(key), {theirs: {}, own: {}})[contender][number] = [median]
    in_turns = {}
    for key, rounds in times.items():
        if ratio := ratio_by_rounds(rounds[theirs], rounds[own]):
            in_turns.setdefault(key[:-1], ratio[0])
    cases = pd.MultiIndex.from_frame(pairs[_KEY])
    ratios = pairs["cold_median_s_of_baseline"] / pairs["cold_median_s"]
    found = pd.Series([in_turns.get(case, math.nan) for case in cases], index=pairs.index, dtype=float)
    return found.fillna(ratios.astype(float)), int(found.isna().sum())
