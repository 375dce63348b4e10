"""`voltabench train` as a user runs it: stopped and run again it is the run that went on; mistakes are one line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from harness import cli, training
from harness.errors import MachineError
from impl.sparse_training.recipes import RECIPES, load

TRAIN = ("train", "--task", "pathfinder", "--samples", "150", "--batch", "1")


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def run(tmp_path, *options, **popen):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "harness", *TRAIN, *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen
    )


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    """T10, and T12: all times lie within the run's."""
    options = ("--method", "sat", "--steps", "6")
    began = time.monotonic()
    assert run(tmp_path, *options, "--results", tmp_path / "whole").wait() == 0
    stopped = run(tmp_path, *options, "--results", tmp_path / "stopped")
    folder = tmp_path / "stopped" / "pathfinder-sat-seed0"
    while not (folder / "steps.jsonl").exists() or not lines(folder, "steps"):
        assert stopped.poll() is None, stopped.stdout.read()
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(timeout=60) == 0
    assert not (folder / "run.json").exists()
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["min_skewness"], settings["max_change"], settings["steps"]) == (1.7, 0.013, 6)
    assert run(tmp_path, *options, "--results", tmp_path / "stopped").wait() == 0

    whole = tmp_path / "whole" / "pathfinder-sat-seed0"
    expected, got = ([{**line, "seconds": 0} for line in lines(f, "steps")] for f in (whole, folder))
    assert [line["step"] for line in got] == list(range(6))
    assert got == expected
    seconds = [line["seconds"] for line in lines(folder, "steps")]
    assert seconds[0] >= 0
    assert seconds == sorted(set(seconds)), "the run's time goes on when it is resumed"
    ended = json.loads((folder / "run.json").read_text())
    assert seconds[-1] <= ended["seconds"] <= time.monotonic() - began
    assert ended["test_accuracy"] == json.loads((whole / "run.json").read_text())["test_accuracy"]
    assert ended["source"] == "generated"
    assert ended["splits"]["train"]["duplicates"] == ended["splits"]["test"]["shared"] == 0
    assert (ended["processes"], ended["deterministic"], ended["batch"]) == (1, True, 1)
    assert settings.items() <= ended.items()


def refused(monkeypatch, capfd, tmp_path, *options):
    """What the command says, in this process, when it ends with exit code 2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["voltabench", *TRAIN, *options, "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    return "".join(capfd.readouterr())


def test_a_folder_is_trained_in_by_one_at_a_time(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "pathfinder-window-seed0"
    with training._held(folder):
        said = refused(monkeypatch, capfd, tmp_path, "--method", "window", "--steps", "6")
    assert said == f"voltabench: {folder}: another process trains there; wait for it, or name other --results\n"
    assert [path.name for path in folder.iterdir()] == [".lock"]
    with training._held(folder):
        pass


def test_a_run_that_cannot_be_repeated_says_so(tmp_path, monkeypatch):
    """T17: PyTorch's sparse products on a GPU."""
    data = load("pathfinder", None, tmp_path, (6, 2, 4))
    said = {}
    for method in ("sat_csr", "sat", "reformer"):
        named = training.TrainingRun("pathfinder", method)
        made = training._trainer(named, dataclasses.replace(RECIPES["pathfinder"], batch=2), data, torch.device("cpu"))
        assert made.repeatable
        made.device = torch.device("cuda")
        said[method] = made.repeatable
    assert said == {"sat_csr": False, "sat": True, "reformer": True}


def test_the_interval_of_evaluation_is_part_of_a_run_that_goes_sparse_by_it(tmp_path):
    """T10: resumed with another, SPION would go sparse at another step."""
    data = load("pathfinder", None, tmp_path, (6, 2, 4))
    recipe = dataclasses.replace(RECIPES["pathfinder"], batch=2)

    def made(method, evaluate_every):
        named = training.TrainingRun("pathfinder", method, evaluate_every=evaluate_every)
        return training._trainer(named, recipe, data, torch.device("cpu"))

    for method in ("spion", "sat"):
        made(method, 5).save(tmp_path / "checkpoint.pt")
        made(method, 5).load(tmp_path / "checkpoint.pt")
        if method == "sat":
            made(method, 7).load(tmp_path / "checkpoint.pt")
            continue
        with pytest.raises(ValueError, match=r"run: monitored every 5 steps, not monitored every 7 steps$"):
            made(method, 7).load(tmp_path / "checkpoint.pt")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MachineError, match="process 2 of this machine finds no GPU of its own: torch has 2"):
        training._join_processes(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "none"], "voltabench: unknown method 'none'; known: dense, "),
        (["--method", "sat", "--task", "image"], "task image: needs its download (--data FOLDER); the stand-in"),
        (["--method", "sat", "--batch", "5000"], "a batch of 5000 is more than the 144 training samples"),
        (["--method", "sat", "--task", "listops", "--data", "nowhere"], "nowhere/basic_train.tsv"),
        (["--method", "sat", "--device", "cuda"], "voltabench: --device cuda: torch finds no GPU here"),
        (["--method", "sat", "--max-change", "0"], "voltabench: max_change: no distance is below 0"),
        (["--method", "sat", "--max-change", "-1"], "voltabench: max_change: no distance is below -1"),
        (["--method", "sat", "--min-skewness", "nan"], "voltabench: min_skewness: nan is no number to wait for"),
    ],
)
def test_mistakes_are_one_line(tmp_path, options, message, monkeypatch, capfd):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    output = refused(monkeypatch, capfd, tmp_path, *options)
    assert message in output
    assert len(output.splitlines()) == 1
