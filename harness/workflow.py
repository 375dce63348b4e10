"""What the Snakefile asks of the harness: which run this is, what it lacks, and who is at work on it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from harness.config import Config, parse_config
from harness.contender import ROOT, hash_sources
from harness.errors import MachineError
from harness.machine import check_machine, config_for_machine
from harness.store import latest, records_path

LOCKS = Path(".snakemake/locks")
_held: list[IO[str]] = []  # keeps the lock of `claim_run` until the process ends


def resolve_config(given: Mapping[str, Any], source: str | None) -> Config:
    """The run's config: the given one, or this machine's with the given keys over it. Raises ConfigError."""
    if "experiments" in given:
        return parse_config(dict(given), source or "--config")
    raw, machine_source = config_for_machine()
    return parse_config({**raw, **given}, " + ".join(filter(None, [machine_source, source])))


def open_run(config: Config) -> Path:
    """Write the run's config where the commands read it, and make Snakemake see what an interrupted run lacks.

    Returns results/<run>/config.yaml, rewritten only when its content changed. Unless another process is at
    work on the run, Snakemake's locks of a killed one are cleared, and the tables of panels that lack records
    are removed: they are derived, and their absence is what makes Snakemake measure the rest.
    Raises MachineError where the folder cannot be written.
    """
    path = config.results / "config.yaml"
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    try:
        config.results.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        if not is_claimed(config):
            _clear_stale_locks(config.results)
            for name in config.panel_names():
                if not is_complete(config, name):
                    panel_table(config, name).unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"{error.filename or config.results}: {error.strerror}; results are written there") from None
    return path


def is_complete(config: Config, name: str) -> bool:
    """Whether panel `experiment/panel` has a record, of today's code, for every row that it must leave."""
    op = config.experiments[name.partition("/")[0]].op
    contenders = config.contenders(op)
    found = latest(records_path(config, name))
    for case, contender in config.rows(name):
        record = found.get((case.experiment, case.panel, case.id, contender))
        if record is None or record.code_hash != contenders[contender].code_hash():
            return False
    return True


def panel_code(config: Config, name: str) -> dict[str, str]:
    """Code hash of each contender of the panel: a change is a reason to measure again."""
    experiment, _, panel = name.partition("/")
    contenders = config.contenders(config.experiments[experiment].op)
    used = config.panel_contenders(experiment, config.panel(experiment, panel))
    return {contender: contenders[contender].code_hash() for contender in used}


def kernel_hash() -> str:
    """Hash of everything under impl/ that a compiled kernel depends on."""
    return hash_sources([ROOT / "impl"])


def panel_table(config: Config, name: str) -> Path:
    """The declared output of a panel's measure job; `name` is `experiment/panel`."""
    return config.results / "panels" / f"{name}.parquet"


def claim_run(config: Config, local: bool) -> None:
    """Take the run for this process, before its first job; `local` says that jobs run on this machine.

    Raises MachineError when the machine is not the config's, or another process has the run.
    """
    if local:
        check_machine(config)
    lock = _lock_file(config).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise MachineError(f"{config.results}: process {lock.read()} is at work on this run; wait for it") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _held.append(lock)


def is_claimed(config: Config) -> bool:
    """Whether a living process holds `claim_run`'s lock."""
    if not _lock_file(config).exists():
        return False
    with _lock_file(config).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(config: Config) -> Path:
    return config.results / ".lock"


def _clear_stale_locks(results: Path) -> None:
    for lock in LOCKS.glob("*.lock"):
        if any(line.startswith(f"{results}/") for line in lock.read_text().splitlines()):
            lock.unlink()
