"""What a run measured, what could not run and why, and where to look."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from harness.config import load_config
from harness.errors import NoRecords
from harness.figures.run import Run
from harness.store import pending

PLACES = {
    "report.zip": "the report: unpack it and open report.html",
    "training": "logs, checkpoints and results of `voltabench train`",
    "figures": "each figure as PDF, SVG, PNG, with its CSV",
    "claims.csv": "each published number and the verdict of this run",
    "notebooks": "the executed notebooks",
    "records.parquet": "one row per case and contender; samples.parquet beside it",
    "curves.parquet": "the loss of every step of the trainings",
    "model.csv": "what a model expects of our kernels on a GPU that it names; nothing in it was timed but measured_*",
    "resources.csv": "registers, shared memory and occupancy of each kernel",
}


def print_summary(path: str | Path) -> None:
    """Print the summary of the run of config `path`. Raises NoRecords."""
    config = load_config(path)
    table = config.results / "records.parquet"
    if not table.exists():
        raise NoRecords(table, path)
    records = pd.read_parquet(table)
    console = Console(highlight=False)
    console.print(measured(records))
    for title, lines in (("Right, but", stand_ins(records)), ("Could not run", not_measured(records))):
        if lines:
            console.print(f"[bold]{title}[/bold]")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True, markup=False)
    if ended := trained(Run.open(path)):
        console.print("[bold]Trained[/bold]")
        for line in ended:
            console.print(f"  {line}", soft_wrap=True, markup=False)
    if lacking := sum(len(pending(config, name)) for name in config.panel_names()):
        console.print(f"[bold]{lacking} rows have no record of the present code[/bold]: run again to add them")
    console.print("[bold]Where to look[/bold]")
    for name, what in PLACES.items():
        if (config.results / name).exists():
            console.print(f"  {config.results / name}: {what}", soft_wrap=True)


def measured(records: pd.DataFrame) -> Table:
    """Rows of status ok by experiment, contender and backend, with the worst error against the gate's limit."""
    table = Table(title="Measured")
    table.add_column("experiment", overflow="fold")
    table.add_column("contender", no_wrap=True)
    table.add_column("backend", overflow="fold")
    for name in ("ok", "of", "error / limit"):
        table.add_column(name, justify="right")
    named = None
    for (experiment, contender), rows in records.groupby(["experiment", "contender"], sort=False):
        ok = rows[rows.status == "ok"]
        if ok.empty:
            continue
        error = (ok.error_ratio / ok.error_limit).max()
        backends = ", ".join(sorted(ok.backend.dropna().unique()))
        shown = "exact" if pd.isna(error) else f"{error:.2f}"
        if experiment != named:
            table.add_section()
        name, named = "" if experiment == named else experiment, experiment
        table.add_row(name, contender, backends, f"{len(ok)}", f"{len(rows)}", shown)
    return table


def trained(run: Run) -> list[str]:
    """One line per run of `voltabench train`."""
    lines = []
    for training in run.trainings():
        who, settings = training.who, training.settings
        sparse = "" if training.transition is None else f"sparse from step {training.transition}, "
        if training.ended:
            steps = f"{settings['steps']} steps"
            accuracy = f"{settings['test_accuracy']:.1%} of the test split right ({settings['source']} data)"
        else:
            steps = training.stopped
            accuracy = f"{settings['source']} data"
        costs = "".join(
            f"; {phase} {1e3 * training.step_seconds[phase]:.3g} ms a step, {peak / 2**30:.3g} GiB at most"
            for phase, peak in settings.get("peak_bytes", {}).items()  # none on a CPU, whose times say nothing
            if phase in training.step_seconds
        )
        who = f"{who['task']}, {who['label']}, seed {who['seed']}"
        lines.append(f"{who}: {steps}, {sparse}{accuracy}{costs}")
    return lines


def stand_ins(records: pd.DataFrame) -> list[str]:
    """One line per backend and reason of rows of status ok without times, or whose reference ran for a kernel."""
    ok = records[records.status == "ok"]
    why = ok.note.where(ok.note.notna(), "the plain-torch reference ran, not a kernel")
    ok = ok.assign(reason=ok.reason.where(ok.reason.notna() | (ok.backend != "reference"), why))
    return _by_reason(ok.dropna(subset="reason"), "backend")


def not_measured(records: pd.DataFrame) -> list[str]:
    """One line per status and reason of the rows that are not ok."""
    return _by_reason(records[records.status != "ok"], "status")


def _by_reason(records: pd.DataFrame, kind: str) -> list[str]:
    lines = []
    for (what, reason), rows in records.groupby([kind, "reason"], dropna=False, sort=False):
        contenders = ", ".join(rows.contender.unique())
        lines.append(f"{what}: {contenders} ({len(rows)} rows): {reason}")
    return sorted(lines)
