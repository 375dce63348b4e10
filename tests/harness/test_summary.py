"""The summary counts what was measured, groups what was not by its reason, and says what is left."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from harness.config import parse_config
from harness.errors import MachineError
from harness.summary import measured, not_measured, print_summary, stand_ins, trained
from harness.workflow import open_run
from tests.harness.figures import synthetic

ROWS = [
    {"contender": "cublas", "status": "ok", "error_ratio": 0.5, "error_limit": 2.0, "backend": "library"},
    {"contender": "cublas", "status": "ok", "error_ratio": 1.0, "error_limit": 2.0, "backend": "library"},
    {"contender": "copy", "status": "ok", "backend": "library"},
    {"contender": "fast", "status": "unavailable", "reason": "pip install fast"},
    {"contender": "quick", "status": "unavailable", "reason": "pip install fast"},
    {"contender": "quick", "status": "crashed", "reason": "killed by SIGSEGV"},
    {"contender": "ours", "status": "ok", "backend": "emulated", "reason": "not timed"},
    {"contender": "ours", "status": "ok", "backend": "emulated", "reason": "not timed"},
    {"contender": "dense", "status": "ok", "backend": "reference", "note": "no compiler"},
    {"contender": "dense", "status": "ok", "backend": "library", "note": "the same kernel as another's"},
    {"contender": "sparse", "status": "ok", "backend": "reference"},
]


@pytest.fixture
def records() -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=[*ROWS[0], "reason", "note"]).assign(experiment="spmm")


def test_rows_of_status_ok_with_their_worst_error(records):
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(measured(records))
    lines = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    assert ["spmm", "cublas", "library", "2", "2", "0.50"] in lines
    assert ["copy", "library", "1", "1", "exact"] in lines, "the experiment is named once"
    assert not any("quick" in line for line in lines)


def test_reasons_are_grouped(records):
    assert not_measured(records) == [
        "crashed: quick (1 rows): killed by SIGSEGV",
        "unavailable: fast, quick (2 rows): pip install fast",
    ]


def test_what_is_emulated_or_a_reference_is_counted(records):
    assert stand_ins(records) == [
        "emulated: ours (2 rows): not timed",
        "reference: dense (1 rows): no compiler",
        "reference: sparse (1 rows): the plain-torch reference ran, not a kernel",
    ]


@pytest.mark.filterwarnings("error")
def test_a_run_of_libraries_has_no_stand_ins(records):
    assert stand_ins(records[records.backend == "library"].assign(reason=None)) == []


def test_trainings_have_a_line(tmp_path):
    run = synthetic.run_of(synthetic.cpu_records()[:3], tmp_path)
    assert trained(run) == [
        "listops, dense, SDPA flash, seed 0: 100 steps, 50.0% of the test split right (generated data)",
        "listops, SAT, seed 0: 100 steps, sparse from step 37, 50.0% of the test split right (generated data); "
        "dense 100 ms a step, 3 GiB at most; sparse 100 ms a step, 0.5 GiB at most",
    ]
    (tmp_path / "training/listops-sat-seed0/run.json").unlink()
    assert trained(run)[1] == "listops, SAT, seed 0: stopped at step 96 of 100, sparse from step 37, generated data"


def test_a_run_without_records_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = {"name": "p", "title": "P", "each": {"m": 8, "k": 8, "n": 1, "sparsity": 0.5}}
    spmm = {"op": "spmm", "question": "?", "baseline": "cublas", "contenders": ["cublas"], "panels": [panel]}
    config = parse_config({"run": "tiny", "device": "cpu", "experiments": {"spmm": spmm}}, "tiny.yaml")
    with pytest.raises(MachineError, match=r"results/tiny/records\.parquet: no records yet; measure and collect "):
        print_summary(open_run(config))
