"""The command as a person meets it: what cannot be written is one line, any other fault is not hidden."""

from __future__ import annotations

import errno
import os

import pytest

from harness import cli


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


def test_another_error_keeps_its_traceback(monkeypatch):
    with pytest.raises(FileNotFoundError):
        run_with(monkeypatch, FileNotFoundError(errno.ENOENT, "no such file", "x"))
