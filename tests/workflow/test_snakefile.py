"""Snakemake on small configs: what it takes, refuses, and picks up again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.config import load_config
from harness.paths import ROOT

TINY = {
    "run": "tiny",
    "device": "cpu",
    "measure": {"warmup_s": 0.0, "min_time_s": 0.001, "max_time_s": 0.01, "rounds": 2, "min_samples": 3},
    "experiments": {
        "spmm": {
            "op": "spmm",
            "question": "?",
            "baseline": "cublas",
            "contenders": ["cublas", "copy"],
            "panels": [
                {"name": "small", "title": "Small", "each": {"m": 8, "k": 8, "n": 1, "sparsity": [0.5, 0.75]}},
                {
                    "name": "first",
                    "title": "First",
                    "headline": True,
                    "each": {"m": 8, "k": 8, "n": 2, "sparsity": 0.5},
                },
            ],
        }
    },
}
RECORDS = "results/tiny/records.parquet"


def snakemake(folder: Path, *options: str, house: Path = ROOT) -> subprocess.CompletedProcess:
    """Snakemake in `folder`, as on a machine without a GPU; stdout and stderr together in `stdout`."""
    command = [sys.executable, "-m", "snakemake", "-s", str(house / "Snakefile"), "--cores", "1", *options]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=folder, env=environment, check=False, timeout=300, **both)


def tiny(folder: Path, **changes) -> str:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return str(path)


def lines(folder: Path, panel: str) -> list[str]:
    return (folder / f"results/tiny/records/spmm.{panel}.jsonl").read_text().splitlines()


def test_lint_is_clean(tmp_path):
    ended = snakemake(tmp_path, "--lint")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("name", ["v100", "h200"])
def test_a_gpu_sweep_can_be_looked_at_without_a_gpu(tmp_path, name):
    ended = snakemake(tmp_path, "-n", "--configfile", str(ROOT / f"config/{name}.yaml"))
    assert ended.returncode == 0, ended.stdout
    assert "measuring attention/forward_d64\n" in ended.stdout
    assert (tmp_path / f"results/{name}/config.yaml").exists()


def test_the_slurm_profile_plans_a_job_per_panel(tmp_path):
    """Dry, and without the plugin, which a login node has: its executor is the one option that is replaced."""
    options = ("--workflow-profile", str(ROOT / "profiles/slurm"), "--executor", "local", "--jobs", "8")
    ended = snakemake(tmp_path, "-n", *options, "--configfile", str(ROOT / "config/v100.yaml"))
    assert ended.returncode == 0, ended.stdout
    assert "profiles/default" not in ended.stdout
    assert ended.stdout.count(": measuring ") == len(load_config(ROOT / "config/v100.yaml").panel_names())


@pytest.mark.parametrize(
    ("result", "waits"),
    [("claims.csv", True), ("notebooks/sparse_training_step.ipynb", True), ("notebooks/spmm.ipynb", False)],
)
def test_what_reads_the_trainings_waits_for_them(tmp_path, result, waits):
    """They come last: what is made of them before would have none, and would stay so."""
    training = [{"task": "pathfinder", "methods": ["window"], "steps": 6, "batch": 2, "samples": 150}]
    ended = snakemake(tmp_path, "-n", f"results/tiny/{result}", "--configfile", tiny(tmp_path, training=training))
    assert ended.returncode == 0, ended.stdout
    assert ("training pathfinder-window-seed0\n" in ended.stdout) == waits


def test_a_run_has_the_figures_and_notebooks_of_its_ops(tmp_path):
    ended = snakemake(tmp_path, "-n", "--configfile", tiny(tmp_path))
    assert ended.returncode == 0, ended.stdout
    assert re.findall(r"executing the notebook (\w+)", ended.stdout) == ["spmm"]
    drawn = {name for names in re.findall(r": drawing (.+)", ended.stdout) for name in names.split(", ")}
    assert {"spmm_speedup", "error_gate"} <= drawn
    assert not [name for name in drawn if name.startswith(("attention", "block", "training", "sparse", "decode"))]


def test_plain_snakemake_without_a_gpu_is_the_smoke_run(tmp_path):
    ended = snakemake(tmp_path, "-n")
    assert ended.returncode == 0, ended.stdout
    assert (tmp_path / "results/smoke/config.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"experimentz": 1}, [], "tiny.yaml: unknown key 'experimentz'; known: "),
        ({}, ["--config", "budget_min=-5"], "tiny.yaml: budget_min: Input should be greater than 0 (got -5)"),
        ({"device": "cuda"}, [], "device: cuda needs an NVIDIA GPU"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_runs(tmp_path, changes, options, message):
    ended = snakemake(tmp_path, "--configfile", tiny(tmp_path, **changes), *options)
    assert ended.returncode == 2, ended.stdout
    said = [line for line in ended.stdout.splitlines() if line.startswith("voltabench: ")]
    assert len(said) == 1
    assert message in said[0]
    assert "Traceback" not in ended.stdout
    assert not list(tmp_path.glob("results/tiny/**/*.parquet"))


def test_the_command_line_goes_over_the_file(tmp_path):
    ended = snakemake(tmp_path, "-n", "--configfile", tiny(tmp_path), "--config", "run=mine", "budget_min=7")
    assert ended.returncode == 0, ended.stdout
    written = yaml.safe_load((tmp_path / "results/mine/config.yaml").read_text())
    assert (written["run"], written["budget_min"]) == ("mine", 7)


def test_a_run_is_picked_up_where_it_stopped(tmp_path):
    options = (RECORDS, "--configfile", tiny(tmp_path))
    stopped = snakemake(tmp_path, *options, "--config", "budget_min=0.00001")
    assert stopped.returncode == 0, stopped.stdout
    assert stopped.stdout.index("measuring spmm/first") < stopped.stdout.index("measuring spmm/small")
    assert "the budget of 1e-05 min is spent" in stopped.stdout
    first = lines(tmp_path, "first")
    assert len(first) == 2
    assert lines(tmp_path, "small") == []

    ended = snakemake(tmp_path, *options)
    assert ended.returncode == 0, ended.stdout
    assert lines(tmp_path, "first") == first
    whole = lines(tmp_path, "small")
    assert len(whole) == 4
    assert {json.loads(line)["record"]["status"] for line in whole} == {"ok"}

    again = snakemake(tmp_path, *options)
    assert "Nothing to be done" in again.stdout

    journal = tmp_path / "results/tiny/records/spmm.small.jsonl"
    journal.write_text("\n".join(whole[:3]) + "\n" + whole[3][:40])  # the last line torn, as by kill -9
    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text(f"{RECORDS}\n")

    resumed = snakemake(tmp_path, *options)
    assert resumed.returncode == 0, resumed.stdout
    assert "measuring spmm/small" in resumed.stdout
    assert "measuring spmm/first" not in resumed.stdout
    assert lines(tmp_path, "small")[:3] == whole[:3]
    assert len(lines(tmp_path, "small")) == 4
    assert lines(tmp_path, "first") == first


def copy_of_the_house(house: Path) -> Path:
    """This repository in `house`; of it, Snakefile, workflows and harness can be edited."""
    for part in ("harness", "workflows"):
        shutil.copytree(ROOT / part, house / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", house)
    (house / "results").mkdir()
    for part in ("baselines", "config", "environment.yml", "impl", "notebooks", "profiles", "results/paper"):
        (house / part).symlink_to(ROOT / part)
    return house


def test_new_drawing_code_draws_again_and_measures_nothing(tmp_path):
    house = copy_of_the_house(tmp_path / "the house")
    spmm = TINY["experiments"]["spmm"]
    config = tiny(tmp_path, experiments={"spmm": {**spmm, "panels": spmm["panels"][:1]}})
    options = ("results/tiny/figures/error_gate.svg", "results/tiny/claims.csv", "--configfile", config)
    done = snakemake(tmp_path, *options, house=house)
    assert done.returncode == 0, done.stdout
    assert "Nothing to be done" in snakemake(tmp_path, "-n", *options, house=house).stdout

    steps = {"harness/figures/style.py": "error_gate, ", "harness/claims.py": "judging the claims"}
    for edited, again in steps.items():
        source = house / edited
        before = source.read_text()
        source.write_text(before + "\n")
        planned = snakemake(tmp_path, "-n", *options, house=house).stdout
        assert [step for step in (*steps.values(), "measuring", "collecting") if step in planned] == [again]
        source.write_text(before)
