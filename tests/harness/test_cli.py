"""The command as a person meets it: what cannot be written is one line, any other fault is not hidden."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from harness import cli
from harness.paths import ROOT


def run_with(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr(cli, "app", fails)
    cli.main()


@pytest.mark.parametrize("number", sorted(cli.UNWRITABLE))
@pytest.mark.parametrize("place", ["results/mine/run.json", None])
def test_what_cannot_be_written_is_one_line(monkeypatch, capsys, number, place):
    with pytest.raises(SystemExit) as ended:
        run_with(monkeypatch, OSError(number, "from the library", place))
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"voltabench: {place or 'results'}: {os.strerror(number)}")
    assert told.count("\n") == 1


def command(*arguments):
    """The command's exit code, and its last words."""
    ended = subprocess.run([sys.executable, "-m", "harness", *arguments], cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stderr


def test_a_report_that_cannot_be_written_is_refused_before_compiling(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("mine")
    code, told = command("build", "config/smoke.yaml", "--output", str(tmp_path / "file" / "resources.csv"))
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith(f"voltabench: {tmp_path}/file")
    assert os.listdir(tmp_path) == ["file"], "no compiled kernel, no part of a report"
    assert command("build", "config/smoke.yaml", "--output", str(tmp_path))[0] == 2


@pytest.mark.parametrize("minutes", ["-1", "0", "nan"])
def test_a_budget_that_is_none_is_refused_before_the_workflow(minutes):
    code, told = command("run", "config/smoke.yaml", f"--budget-min={minutes}")
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith("voltabench: --budget-min: budget_min: Input should be ")


def test_another_error_keeps_its_traceback(monkeypatch):
    with pytest.raises(FileNotFoundError):
        run_with(monkeypatch, FileNotFoundError(errno.ENOENT, "no such file", "x"))
