"""What the Snakefile relies on: the config file, what an interrupted run lacks, and who is at work on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import machine, workflow
from harness.config import Config, load_config, parse_config
from harness.errors import ConfigError, MachineError
from harness.paths import ROOT
from harness.records import Record
from harness.store import Store, records_path
from harness.workflow import at_work, claim_run, open_run, resolve_config, todo_file

RAW = {
    "run": "tiny",
    "device": "cpu",
    "experiments": {
        "spmm": {
            "op": "spmm",
            "question": "?",
            "baseline": "cublas",
            "contenders": ["cublas", "copy"],
            "panels": [{"name": "small", "title": "Small", "each": {"m": 8, "k": 8, "n": 1, "sparsity": [0.5, 0.6]}}],
        }
    },
}


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    monkeypatch.chdir(tmp_path)
    return parse_config(RAW, "tiny.yaml")


def leave_records(config: Config, count: int, **changes) -> None:
    """The first `count` records of the panel, as a measurement of today's code leaves them."""
    with Store(records_path(config, "spmm/small")) as store:
        for case, contender in config.rows("spmm/small")[:count]:
            code_hash = config.contenders("spmm")[contender].code_hash()
            fields = {"experiment": case.experiment, "panel": case.panel, "case_id": case.id, "contender": contender}
            store.append(Record(**{**fields, "op": "spmm", "code_hash": code_hash, **changes}), [])


def test_given_config_is_taken_whole_and_keys_go_over_the_machines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_config(RAW).run == "tiny"
    monkeypatch.setattr(machine, "gpus", list)
    over = resolve_config({"run": "mine", "budget_min": 5})
    assert (over.run, over.budget_min, over.device) == ("mine", 5, "cpu")
    with pytest.raises(ConfigError, match=r"config/smoke\.yaml \+ my\.yaml: unknown key 'budget'"):
        resolve_config({"budget": 5}, [given("my.yaml", "budget: 5")])
    with pytest.raises(ConfigError, match=r"my\.yaml: not YAML: the key 'run' is there twice"):
        resolve_config({"run": "b"}, [given("my.yaml", "run: a\nrun: b")])


def given(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_config_is_written_once_and_reads_back_as_itself(config):
    path = open_run(config)
    assert load_config(path) == config
    os.utime(path, (1, 1))
    open_run(config)
    assert path.stat().st_mtime == 1
    open_run(config.model_copy(update={"budget_min": 3.0}))
    assert load_config(path).budget_min == 3.0


@pytest.mark.parametrize("name", ["smoke", "v100", "h200"])
def test_shipped_configs_survive_the_way_to_the_results_folder(name, tmp_path, monkeypatch):
    config = load_config(ROOT / f"config/{name}.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_config(open_run(config)) == config


def test_a_results_folder_that_cannot_be_written_is_one_line(config, tmp_path):
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(MachineError) as caught:
        open_run(config)
    assert str(caught.value).startswith("results")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line(config, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device", "results/tiny/config.yaml")

    monkeypatch.setattr(workflow.Path, "write_text", no_room)
    with pytest.raises(MachineError, match=r"results/tiny/config\.yaml: No space left on device"):
        open_run(config)


def todo(config: Config) -> list[tuple[str, str]]:
    lines = todo_file(config, "spmm/small").read_text().splitlines()
    return [tuple(line.split(" ")) for line in lines if not line.startswith("#")]


def test_what_a_panel_lacks_is_listed_anew_each_time(config):
    rows = [(case.id, contender) for case, contender in config.rows("spmm/small")]
    open_run(config)
    assert todo(config) == rows
    leave_records(config, 3)
    before = records_path(config, "spmm/small").read_bytes()
    open_run(config)
    assert todo(config) == rows[3:]
    text = todo_file(config, "spmm/small").read_text()
    open_run(config)
    assert todo_file(config, "spmm/small").read_text() != text
    assert records_path(config, "spmm/small").read_bytes() == before


def test_the_list_of_a_whole_panel_stays_as_it_is(config):
    open_run(config)
    leave_records(config, 4)
    text = todo_file(config, "spmm/small").read_text()
    open_run(config)
    assert todo_file(config, "spmm/small").read_text() == text


def test_a_whole_panel_without_a_list_gets_one_older_than_any_table(config):
    leave_records(config, 4)
    open_run(config)
    assert todo(config) == []
    assert todo_file(config, "spmm/small").stat().st_mtime == 0


def test_a_panel_of_other_code_is_measured_again(config):
    leave_records(config, 4, code_hash="of yesterday")
    open_run(config)
    assert len(todo(config)) == 4


def test_an_unavailable_contender_is_measured_once_its_package_came(config, monkeypatch):
    leave_records(config, 4, status="unavailable", reason="not installed")
    copy = config.contenders("spmm")["copy"]
    with monkeypatch.context() as patch:
        patch.setattr(type(copy), "unavailable", lambda self, target: "not installed")
        open_run(config)
        assert [contender for _, contender in todo(config)] == ["cublas", "cublas"]
    open_run(config)
    assert [contender for _, contender in todo(config)] == ["cublas", "copy"] * 2


def test_stale_locks_of_this_run_are_cleared_and_others_kept(config, tmp_path):
    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/tiny/records.parquet\nresults/tiny/claims.csv\n")
    (locks / "1.output.lock").write_text("results/tinyer/records.parquet\n")
    open_run(config)
    assert [lock.name for lock in locks.iterdir()] == ["1.output.lock"]


@pytest.fixture
def other_process(config):
    """Another process that is at work on the run; the test may kill it."""
    open_run(config)
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from harness.workflow import claim_run; from harness.config import load_config\n"
        "claim_run(load_config('results/tiny/config.yaml'), local=True); print('claimed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(ROOT)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_a_run_at_work_is_left_alone_until_it_dies(config, tmp_path, other_process):
    assert at_work(config) == str(other_process.pid)
    listed = todo_file(config, "spmm/small").read_text()
    written = (config.results / "config.yaml").read_text()
    lock = tmp_path / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("results/tiny/records.parquet\n")
    open_run(config.model_copy(update={"budget_min": 7.0}))
    assert (config.results / "config.yaml").read_text() == written
    assert todo_file(config, "spmm/small").read_text() == listed
    assert lock.exists()
    with pytest.raises(MachineError, match=f"process {other_process.pid} is at work on this run"):
        claim_run(config, local=True)

    other_process.kill()
    other_process.wait()
    assert at_work(config) is None
    open_run(config)
    assert todo_file(config, "spmm/small").read_text() != listed
    assert not lock.exists()


def test_claiming_checks_the_machine_only_where_jobs_run_on_it(config, monkeypatch):
    monkeypatch.setattr(machine, "gpus", list)
    on_gpu = parse_config({**RAW, "device": "cuda"}, "tiny.yaml")
    open_run(on_gpu)
    with pytest.raises(MachineError, match="needs an NVIDIA GPU"):
        claim_run(on_gpu, local=True)
    claim_run(on_gpu, local=False)


@pytest.mark.parametrize(
    ("edited", "drawn", "judged", "shown"),
    [
        ("harness/figures/style.py", True, False, True),
        ("harness/figures/run.py", True, True, True),
        ("harness/claims.py", False, True, False),
        ("harness/tables.py", False, False, True),
        ("notebooks/spmm.ipynb", False, False, True),
        ("notebooks/attention.ipynb", False, False, False),
        ("results/paper/claims.yaml", True, True, True),
        ("harness/measure.py", False, False, False),
    ],
)
def test_what_an_edit_draws_judges_and_shows_again(edited, drawn, judged, shown, tmp_path, monkeypatch):
    for part in ("harness", "notebooks", "results/paper"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(workflow, "ROOT", tmp_path)
    monkeypatch.setattr(workflow, "PAPER", tmp_path / "results/paper")

    def hashes() -> list[str]:
        return [workflow.figures_hash(), workflow.claims_hash(), workflow.notebook_hash("spmm")]

    before = hashes()
    (tmp_path / edited).write_text((tmp_path / edited).read_text() + "\n")
    assert [a != b for a, b in zip(before, hashes(), strict=True)] == [drawn, judged, shown]
