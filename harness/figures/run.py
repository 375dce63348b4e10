"""A run's records, as figures, claims and notebooks read them."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from harness.config import load_config
from harness.errors import NoRecords
from harness.figures.style import Look, looks
from harness.records import CurvePoint, Record
from harness.store import read_log
from impl.sparse_training.labels import LABELS

KEY = ["experiment", "panel", "case_id", "contender"]  # of a record
TRAINED = ["task", "method", "seed"]  # of a training
WHO = [*KEY, "label", "role", "backend", "status", "missing", "reason"]
# whose times figures compare
OPS = ("attention", "block_sparse_attention", "spmm", "training_step", "sparse_training_step", "decode_step")
ON_GPU = ("kernel", "library")  # backends whose times on a GPU are a contender's speed
STAND_INS = {"reference", "emulated"}
COMMITS_SHOWN = 4  # below a figure; the records have each row's
REASON_LENGTH = 100  # characters of a reason that a figure without data has room for
MISSING = {
    "out_of_memory": "OOM",
    "unsupported": "n.a.",
    "unavailable": "n.a.",
    "incorrect": "wrong",
    "unstable": "unstable",
    "crashed": "crash",
    "timeout": "timeout",
}


def read_records(path: Path) -> pd.DataFrame:
    """The records of a Parquet file, with whole numbers as such: pandas makes a nullable integer a float. Columns that
    an earlier version did not have are null."""
    records = pd.read_parquet(path).reindex(columns=list(Record.model_fields))
    whole = [name for name, field in Record.model_fields.items() if field.annotation in (int, int | None)]
    return records.astype(dict.fromkeys(whole, "Int64"))


@dataclass(frozen=True)
class Training:
    """One run of `voltabench train`: its run.json and its logs. One that was stopped has no results: its settings are
    those of its settings.json, or its config's where an earlier version has left none."""

    settings: Mapping[str, Any]
    ended: bool
    steps: pd.DataFrame
    evaluations: pd.DataFrame

    @classmethod
    def of(cls, folder: Path, planned: Mapping[str, Any] | None) -> Training | None:
        """None where it has not ended and nothing says what it was to be, or where it has no step."""
        logs = [pd.DataFrame(read_log(folder / f"{name}.jsonl")) for name in ("steps", "evaluations")]
        said = [path for name in ("run", "settings") if (path := folder / f"{name}.json").exists()]
        settings = json.loads(said[0].read_text()) if said else planned
        ended = bool(said) and said[0].stem == "run"
        return cls(settings, ended, *logs) if settings and len(logs[0]) else None

    @property
    def who(self) -> dict[str, Any]:
        """Columns that name it."""
        own = {name: self.settings[name] for name in TRAINED}
        return {**own, "label": LABELS[own["method"]]}

    @property
    def stopped(self) -> str | None:
        """Where, in words, for one that has not ended."""
        last = self.steps["step"].iloc[-1]
        return None if self.ended else f"stopped at step {last:,} of {self.settings['steps']:,}"

    @property
    def dev_accuracy(self) -> float | None:
        """The last of its evaluations."""
        return self.evaluations["accuracy"].iloc[-1] if len(self.evaluations) else None

    @property
    def step_seconds(self) -> dict[str, float]:
        """Of each phase, the median over the intervals of the log; few of them hold an evaluation."""
        each = self.steps["seconds"].diff() / self.steps["step"].diff()
        return each.groupby(self.steps["phase"]).median().dropna().to_dict()

    @property
    def transition(self) -> int | None:
        """The first step of the sparse phase, for a method that also has a dense one."""
        dense = self.steps["step"][self.steps["phase"] == "dense"]  # its last one is always logged
        return int(dense.iloc[-1]) + 1 if 0 < len(dense) < len(self.steps) else None


@dataclass(frozen=True)
class Run:
    """Records of one run, and what is needed to draw them.

    `records` has the columns of harness.records.Record; `labels` maps a contender to its legend text.
    """

    name: str
    device: Literal["cpu", "cuda"]
    folder: Path
    labels: Mapping[str, str]
    records: pd.DataFrame
    planned: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # Config.training_settings
    drawn: pd.DataFrame | None = None  # rows whose records are those that `place` tells of; None: all

    @classmethod
    def open(cls, config_path: str | Path, folder: Path | None = None) -> Run:
        """Read the records of a run, in `folder` or else in results/<run>.

        Raises ConfigError for a bad config, NoRecords.
        """
        config = load_config(config_path)
        folder = folder or config.results
        path = folder / "records.parquet"
        if not path.exists():
            raise NoRecords(path, config_path)
        ops = {experiment.op for experiment in config.experiments.values()}
        labels = {name: c.label for op in sorted(ops) for name, c in config.contenders(op).items()}
        return cls(config.run, config.device, folder, labels, read_records(path), config.training_settings)

    def curves(self) -> pd.DataFrame:
        """The run's loss curves, with the columns of harness.records.CurvePoint; no rows where it trained nothing."""
        path = self.folder / "curves.parquet"
        return pd.read_parquet(path) if path.exists() else pd.DataFrame(columns=list(CurvePoint.model_fields))

    def trainings(self) -> list[Training]:
        """The runs of `voltabench train`, those that have not ended among them."""
        folders = sorted(path for path in (self.folder / "training").glob("*") if path.is_dir())
        found = [Training.of(path, self.planned.get(path.name)) for path in folders]
        return [training for training in found if training]

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @functools.cached_property
    def _looks(self) -> dict[str, Look]:
        return looks(dict(zip(self.records["contender"], self.records["role"], strict=True)), self.labels)

    def looks(self, rows: pd.DataFrame) -> dict[str, Look]:
        """Look of each contender of `rows`, in drawing order: the same in every figure of the run, save that on a CPU
        its label says what stood in for a kernel in these rows."""
        backends = rows.groupby("contender")["backend"].unique()
        found = {name: look for name, look in self._looks.items() if name in backends}
        for name, look in found.items() if self.on_cpu else ():
            stand_ins = set(backends[name]) & STAND_INS
            if stand_ins:
                what = f"{_distinct(stand_ins)}, CPU)"
                label = f"{look.label[:-1]}; {what}" if look.label.endswith(")") else f"{look.label} ({what}"
                found[name] = dataclasses.replace(look, label=label, hatch=look.hatch or "xxxx")
        return found

    @property
    def device_names(self) -> str:
        return _distinct(self.records["device_name"].dropna()) or "an unknown device"

    def of_figure(self, rows: pd.DataFrame) -> Run:
        """This run, with a `place` that tells of these rows' records or trainings, where they say which these are."""
        named = any(set(key) <= set(rows) for key in (KEY, TRAINED))
        return dataclasses.replace(self, drawn=rows) if named and len(rows) else self

    @property
    def place(self) -> str:
        """Where, from which code and, of records, when: one line."""
        if self.drawn is not None and not set(KEY) <= set(self.drawn):
            return self._place_of_trainings
        records = self.records if self.drawn is None else self.records.merge(self.drawn[KEY].drop_duplicates(), on=KEY)
        known = {key: records[key].dropna() for key in ("commit", "started_at")}
        dates = sorted({str(start)[:10] for start in known["started_at"]})
        when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
        return f"run {self.name} · {self.device_names} · commit {_short(known['commit'])} · {when or 'no date'}"

    @property
    def _place_of_trainings(self) -> str:
        drawn = set(self.drawn[TRAINED].itertuples(index=False, name=None))
        settings = [t.settings for t in self.trainings() if tuple(t.settings[name] for name in TRAINED) in drawn]
        devices, commits = ([s[name] for s in settings if name in s] for name in ("device_name", "commit"))
        return f"run {self.name} · {_distinct(devices) or 'an unknown device'} · commit {_short(commits)}"

    def select(
        self,
        ops: str | Sequence[str],
        columns: Sequence[str],
        values: Sequence[str],
        *,
        keep: Sequence[str] = (),
        speed: bool,
    ) -> pd.DataFrame:
        """Rows of the ops without controls, tidy and in an order that does not depend on the order of the records.

        Returns the columns WHO, `columns` (which give the order), `keep` and `values`. Values are kept where the status
        is ok and, with `speed`, on a GPU only where a kernel or a library ran. `missing` is the word to print where
        the first value is absent.
        """
        rows = self.records[self.records["op"].isin([ops] if isinstance(ops, str) else ops)]
        rows = rows[rows["role"] != "control"].copy()
        labels = {name: look.label for name, look in self.looks(rows).items()}
        rows["label"] = rows["contender"].map(labels)
        good = rows["status"] == "ok"
        if speed and not self.on_cpu:
            good &= rows["backend"].isin(ON_GPU)
        for value in values:
            rows[value] = rows[value].astype(float).where(good)
        absent = rows[values[0]].isna() if values else ~good
        untimed = (rows["status"] == "ok") & rows["reason"].notna()
        rows["missing"] = rows["status"].map(MISSING).fillna("n.a.").mask(untimed, "not timed").where(absent, "")
        rows["direction"] = pd.Categorical(rows["direction"], ["forward", "backward"], ordered=True)
        places = {name: place for place, name in enumerate(labels)}
        rows["_place"] = rows["contender"].map(places)
        # Of two panels with a case, the first that has the first value: so its peers are of one panel, measured in turn
        # with it. What else it lacks (an energy) comes from the other.
        cell = ["experiment", "case_id", "contender"]
        rows = rows.assign(_lacks=absent).sort_values(["_lacks", "panel"], kind="stable")
        rows[list(values)] = rows.groupby(cell)[list(values)].bfill()
        rows = rows.drop_duplicates(cell)
        rows = rows.sort_values(["experiment", *columns, "case_id", "_place"], kind="stable")
        return rows[list(dict.fromkeys([*WHO, *columns, *keep, *values]))].reset_index(drop=True)

    def explain(self, rows: pd.DataFrame, what: str) -> str:
        """Why `rows` have nothing to draw, in words; `what` names the thing that is missing."""
        if rows.empty:
            return f"no {what}: this run has no such cases"
        reasons = rows["reason"].fillna("no reason given").map(lambda reason: textwrap.shorten(reason, REASON_LENGTH))
        counts = rows.groupby(["status", reasons]).size().sort_values(ascending=False)
        parts = [f"{count} x {status} ({reason})" for (status, reason), count in counts.head(3).items()]
        return f"no {what}: " + "; ".join(parts)


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))


def _short(commits: Iterable[object]) -> str:
    found = sorted({str(c)[:12] + "-dirty" * str(c).endswith("-dirty") for c in commits})
    if len(found) > COMMITS_SHOWN:
        found = [*found[:COMMITS_SHOWN], f"{len(found) - COMMITS_SHOWN} others"]
    return ", ".join(found) or "unknown"
