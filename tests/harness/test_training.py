"""`voltabench train` as a user runs it: stopped and run again it is the run that went on; mistakes are one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "harness", "train", "--task", "pathfinder", "--samples", "150", "--batch", "1"]


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def run(tmp_path, *options, **popen):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, *options]
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
    assert ended["splits"]["train"]["duplicates"] == 0


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
def test_mistakes_are_one_line(tmp_path, options, message, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    process = run(tmp_path, *options, "--results", tmp_path)
    output = process.communicate()[0]
    assert process.returncode == 2
    assert message in output
    assert len(output.splitlines()) == 1
