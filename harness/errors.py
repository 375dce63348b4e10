"""Errors a user can mend: each is one line that says what, where, and what would be right."""

from __future__ import annotations

from pathlib import Path


class VoltabenchError(Exception):
    """Base of every error the command prints as one line, with exit code 2 and no traceback."""


class ConfigError(VoltabenchError):
    """The config is wrong; the message starts with the file and the path inside it."""


class MachineError(VoltabenchError):
    """The machine cannot do what was asked: no such GPU, read-only folder, full disk."""


class NoRecords(MachineError):
    """A run has no table of records yet."""

    def __init__(self, place: Path, config_path: str | Path):
        super().__init__(f"{place}: no records yet; measure and collect first: voltabench run {config_path}")
