"""`voltabench run`: the whole workflow on one config, then what came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.config import load_config, parse_config
from harness.errors import NoRecords, VoltabenchError
from harness.machine import check_machine
from harness.paths import ROOT
from harness.summary import print_summary
from harness.workflow import refuse_if_at_work, resolve_config


class WorkflowFailed(VoltabenchError):
    """Snakemake stopped on a failed step; its log has been shown."""


def run_workflow(path: Path | None, budget_min: float | None) -> None:
    """Run the workflow up to the report, resuming what is there, and print the summary.

    Raises ConfigError or MachineError before any work when the config is wrong or not for this machine.
    """
    config = load_config(path) if path else resolve_config({})
    check_machine(config)
    refuse_if_at_work(config)
    options = ["--configfile", str(path)] if path else []
    if budget_min is not None:
        parse_config({**config.model_dump(mode="json"), "budget_min": budget_min}, "--budget-min")
        options += ["--config", f"budget_min={budget_min}"]
    _snakemake("all", *options)
    print_summary(config.results / "config.yaml")


def make_report(path: Path) -> None:
    """Write results/<run>/report.zip: figures, claims, notebooks and how they were made, to be opened offline.

    Raises ConfigError for a bad config, NoRecords, WorkflowFailed for a run that lacks one of these.
    """
    results = load_config(path).results
    if not (results / "records.parquet").exists():
        raise NoRecords(results / "records.parquet", path)
    _snakemake("results", "--configfile", str(path), "--report", str(results / "report.zip"))


def _snakemake(target: str, *options: str) -> None:
    command = [sys.executable, "-m", "snakemake", target, "--snakefile", str(ROOT / "Snakefile"), *options]
    code = subprocess.run(command).returncode
    if code:
        raise WorkflowFailed(f"the workflow stopped (exit code {code}); mend what is shown above and run again")
