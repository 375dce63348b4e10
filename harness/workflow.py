"""What the Snakefile asks of the harness: which run this is, what it lacks, and who is at work on it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml

from harness.budget import start_budget
from harness.config import Config, parse_config, read_config
from harness.contender import hash_sources
from harness.errors import MachineError
from harness.machine import check_machine, config_for_machine
from harness.paths import PAPER, ROOT
from harness.store import pending

LOCKS = Path(".snakemake/locks")
_held: list[IO[str]] = []  # keeps the lock of `claim_run` until the process ends


def resolve_config(given: Mapping[str, Any], files: Sequence[str | Path] = ()) -> Config:
    """The run's config: the given one, or this machine's with the given keys over it. Raises ConfigError.

    `files` are where Snakemake has read `given` from; they are read again, since it lets a key be there twice.
    """
    for path in files:
        read_config(path)
    sources = [str(path) for path in files]
    if "experiments" in given:
        return parse_config(dict(given), " + ".join(sources) or "--config")
    raw, machine_source = config_for_machine()
    return parse_config({**raw, **given}, " + ".join([machine_source, *sources]))


def open_run(config: Config) -> Path:
    """Write what the rules read: the run's config, and for each panel the rows that it lacks.

    Returns results/<run>/config.yaml, rewritten only when its content changed. Snakemake's locks of a killed process
    are cleared, and panels that lack rows get a new list of them, which is what makes Snakemake measure the rest.
    All of it is left as it is while another process is at work on the run: this one then only looks.
    Raises MachineError where the folder cannot be written.
    """
    path = config.results / "config.yaml"
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    try:
        config.results.mkdir(parents=True, exist_ok=True)
        if at_work(config) is None:
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            _clear_stale_locks(config.results)
            for name in config.panel_names():
                _write_todo(config, name)
    except OSError as error:
        raise MachineError(f"{error.filename or config.results}: {error.strerror}; results are written there") from None
    return path


def kernel_hash() -> str:
    """Hash of what the compiled kernels and their resource report depend on."""
    impl = ROOT / "impl"
    return hash_sources(
        [impl / "cuda/build.py", impl / "cuda/report.py", impl / "cuda/include", *impl.glob("*/kernels")]
    )


def model_hash() -> str:
    """Hash of the throughput model, beside the kernels."""
    cuda = ROOT / "impl" / "cuda"
    return hash_sources([cuda / "model", cuda / "sass.py", cuda / "emulator", ROOT / "harness" / "throughput.py"])


def curves_hash(config: Config) -> str:
    """Hash of the code that the loss curves depend on."""
    known = config.contenders("training_step")
    return " ".join(known[name].code_hash() for name in config.training_curves.contenders)


def figures_hash() -> str:
    """Hash of what figures are drawn by, beside the records."""
    return hash_sources([ROOT / "harness/figures", *_published()])


def claims_hash() -> str:
    """Hash of what claims are judged by, beside the records."""
    harness = [ROOT / "harness" / part for part in ("claims.py", "statistics.py", "figures/run.py")]
    return hash_sources([*harness, *_published()])


def notebook_hash(name: str) -> str:
    """Hash of what a notebook shows the records with."""
    harness = [ROOT / "harness" / part for part in ("notebooks.py", "tables.py", "statistics.py", "figures")]
    return hash_sources([ROOT / f"notebooks/{name}.ipynb", *harness, *_published()])


def _published() -> list[Path]:
    return [*PAPER.glob("*.csv"), *PAPER.glob("*.yaml")]


def todo_file(config: Config, name: str) -> Path:
    """The rows that panel `experiment/panel` lacks: the input of its measure job."""
    return config.results / "todo" / f"{name}.txt"


def _write_todo(config: Config, name: str) -> None:
    """New content, by its time, whenever rows lack: also when the last attempt ended with the same ones lacking.

    A whole panel's list stays as it is, and is made older than its table where there is none (a fresh clone).
    """
    path = todo_file(config, name)
    lacking = [f"{case.id} {contender}\n" for case, contender in pending(config, name)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if lacking:
        path.write_text(f"# {datetime.now(UTC).isoformat()}\n" + "".join(lacking))
    elif not path.exists():
        path.touch()
        os.utime(path, (0, 0))


def claim_run(config: Config, local: bool) -> None:
    """Take the run for this process, before its first job, and start its time budget; `local`: jobs run here.

    Raises MachineError when the machine is not the config's, or another process has the run.
    """
    if local:
        check_machine(config)
    lock = _lock_file(config).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refuse_if_at_work(config)
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever had it has just ended
    start_budget(config)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _held.append(lock)


def refuse_if_at_work(config: Config) -> None:
    """Raises MachineError when another process has the run."""
    if process := at_work(config):
        raise MachineError(f"{config.results}: process {process} is at work on this run; wait for it")


def at_work(config: Config) -> str | None:
    """The living process that holds `claim_run`'s lock."""
    if not _lock_file(config).exists():
        return None
    with _lock_file(config).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read() or "unknown"
    return None


def _lock_file(config: Config) -> Path:
    return config.results / ".lock"


def _clear_stale_locks(results: Path) -> None:
    for lock in LOCKS.glob("*.lock"):
        if any(line.startswith(f"{results}/") for line in lock.read_text().splitlines()):
            lock.unlink()
