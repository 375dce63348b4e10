"""`voltabench train`: one training run of a task by a method, with progress, a log and checkpoints that resume exactly.

The folder of a run holds `settings.json`, `steps.jsonl` (a line per logged step), `evaluations.jsonl`, `checkpoint.pt`
and, when done, `run.json`; `best_dense.pt` and `best_sparse.pt` are the checkpoints that did best on the dev split. A
kill at any point costs the steps since the last checkpoint; SIGINT and SIGTERM write one first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness import provenance
from harness.collect import write_atomically
from harness.errors import ConfigError, MachineError
from harness.lazy import lazy_import
from harness.locks import try_lock
from harness.measure import Stop
from harness.store import read_log

if TYPE_CHECKING:
    from impl.sparse_training.recipes import Data, Recipe
    from impl.sparse_training.train import StepLog, Trainer

torch = lazy_import("torch")

LOG_EVERY = {"cuda": 10, "cpu": 1}  # steps: reading a loss waits for a GPU
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "voltabench" / "tasks"


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """What to train. steps, batch: fewer than the recipe's, where they are given; the schedule follows the steps."""

    task: str
    method: str
    seed: int = 0
    steps: int | None = None
    batch: int | None = None
    data: Path | None = None  # folder of a user's download
    samples: int = 100_000  # generated ones, of which 2 % each are dev and test
    monitor_every: int = 1
    min_skewness: float | None = None  # of the transition, instead of the paper's
    max_change: float | None = None
    keep_diagonal: bool = False
    evaluate_every: int = 500
    device: str | None = None  # None: CUDA where there is a GPU
    save_every: int = 500

    @property
    def name(self) -> str:
        return f"{self.task}-{self.method}-seed{self.seed}"


def train(run: TrainingRun, results: Path) -> Path:
    """Train, or go on training, in results/<task>-<method>-seed<seed>, and return that folder.

    Raises ConfigError for an unknown task or method, for data that is missing or wrong, and for a folder that holds
    another run; MachineError for a loss that is NaN, for a GPU that is not there, and for a folder that another process
    trains in.
    """
    from impl.sparse_training.labels import LABELS
    from impl.sparse_training.recipes import RECIPES, load, split_sizes
    from impl.sparse_training.train import deterministic, leave_processes

    for kind, value, known in (("task", run.task, RECIPES), ("method", run.method, LABELS)):
        if value not in known:
            raise ConfigError(f"unknown {kind} {value!r}; known: {', '.join(known)}")
    for name in ("min_skewness", "max_change"):
        if not math.isfinite(value := getattr(run, name) or 0.0):
            raise ConfigError(f"{name}: {value} is no number to wait for; name a finite one")
    if run.max_change is not None and run.max_change <= 0:
        raise ConfigError(f"max_change: no distance is below {run.max_change:g}; name a positive one")
    device = _join_processes(run.device)
    changes = {name: getattr(run, name) for name in ("steps", "batch", "keep_diagonal") if getattr(run, name)}
    recipe = dataclasses.replace(RECIPES[run.task], **changes)
    recipe = dataclasses.replace(recipe, warmup_steps=min(recipe.warmup_steps, recipe.steps // 3))
    try:
        data = load(run.task, run.data, CACHE, split_sizes(run.samples))
        trainer = _trainer(run, recipe, data, device)
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f"task {run.task}: {error}") from None
    folder = results / run.name
    with _held(folder) if trainer.rank == 0 else contextlib.nullcontext():
        checkpoint, notes = folder / "checkpoint.pt", {}
        if checkpoint.exists():
            try:
                notes = trainer.load(checkpoint)
            except ValueError as error:
                raise ConfigError(f"{error}; move it away to start anew") from None
        with deterministic(device):
            _Loop(run, trainer, folder, **notes).go()
    del trainer
    leave_processes()
    return folder


def _trainer(run: TrainingRun, recipe: Recipe, data: Data, device: torch.device) -> Trainer:
    from impl.sparse_training.methods import METHODS
    from impl.sparse_training.train import Trainer

    looks = run.evaluate_every if METHODS[run.method].transition == "spion" else run.monitor_every
    trainer = Trainer(recipe, run.method, data, device, run.seed, looks)
    if run.min_skewness is not None:
        trainer.monitor.min_skewness = run.min_skewness
    if run.max_change is not None:
        trainer.monitor.max_change = run.max_change
    return trainer


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, for this process alone as long as it lives."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_lock(lock):
            raise MachineError(f"{folder}: another process trains there; wait for it, or name other --results")
        yield
    finally:
        os.close(lock)


def _join_processes(device: str | None) -> torch.device:
    """The device of this process; under torchrun the GPU of its local rank. Raises MachineError where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("--device cuda: torch finds no GPU here; leave it out to train on the CPU, or see doctor")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return torch.device(device)
    if device == "cpu":
        torch.distributed.init_process_group("gloo")
        return torch.device("cpu")
    rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if rank >= gpus:
        raise MachineError(f"process {rank} of this machine finds no GPU of its own: torch has {gpus}; start as many")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    return torch.device("cuda", torch.cuda.current_device())


class _Loop:
    """The steps of a run, and what they leave in its folder. Only the first process writes.

    The rest is what the processes before this one left in the checkpoint: seconds of training, the peak of memory and
    the best accuracy on the dev split by phase.
    """

    def __init__(
        self,
        run: TrainingRun,
        trainer: Trainer,
        folder: Path,
        *,
        seconds: float = 0.0,
        peak_bytes: dict[str, int] | None = None,
        best: dict[str, float] | None = None,
    ):
        self.run, self.trainer, self.folder = run, trainer, folder
        self.writes = trainer.rank == 0
        self.began, self.first_step = time.monotonic() - seconds, trainer.step_number
        self.peak_bytes, self.best = peak_bytes or {}, best or {}
        self.log_every = LOG_EVERY[trainer.device.type]
        if self.writes:
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("steps", "evaluations"):
                self._cut(folder / f"{name}.jsonl")
            if self.first_step < trainer.recipe.steps:  # results of a run whose checkpoint is gone
                (folder / "run.json").unlink(missing_ok=True)
            for best in folder.glob("best_*.pt"):
                if best.stem.removeprefix("best_") not in self.best:
                    best.unlink()
            self._write("settings", self._settings())

    def go(self) -> None:
        trainer, recipe = self.trainer, self.trainer.recipe
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Stop().watched() as stop, Progress(*columns, disable=not self.writes) as progress:
            bar = progress.add_task(self.run.name, total=recipe.steps, completed=trainer.step_number)
            while trainer.step_number < recipe.steps and not self._stopped(stop):
                log = trainer.step()
                if trainer.phase != log.phase:
                    self._note_peak(log.phase)
                if log.step % self.log_every == 0 or trainer.phase != log.phase:
                    progress.update(bar, description=self._log(log))
                progress.update(bar, completed=trainer.step_number)
                if trainer.step_number % self.run.evaluate_every == 0:
                    self._evaluate()
                if trainer.step_number % self.run.save_every == 0:
                    self._save()
            self._save()
        if trainer.step_number == recipe.steps:
            self._finish()

    def _stopped(self, stop: Stop) -> bool:
        """Whether a process was told to stop. Several of them agree on it at steps of the log, or one would wait."""
        asks = self.trainer.processes == 1 or self.trainer.step_number % self.log_every == 0
        return asks and self.trainer.anywhere(stop())

    def _log(self, log: StepLog) -> str:
        loss, accuracy = log.loss.item(), log.accuracy.item()
        if loss != loss:
            raise MachineError(f"{self.run.name}: the loss of step {log.step} is NaN")
        line = {"step": log.step, "phase": log.phase, "loss": loss, "accuracy": accuracy, "seconds": self._seconds()}
        said = f"{self.run.name} {log.phase} loss {loss:.3f} accuracy {accuracy:.3f}"
        if log.reading is not None:
            skewness, distance = log.reading.skewness.tolist(), log.reading.distance.tolist()
            line |= {"skewness": skewness, "distance": [None if d != d else d for d in distance]}  # none on the first
            said += f" skewness {min(skewness):.2f} distance {max(distance):.2g}"
        self._append("steps", line)
        return said

    def _evaluate(self) -> None:
        phase = self.trainer.phase
        accuracy = self.trainer.evaluate(self.trainer.data.dev)
        self._note_peak(phase)
        line = {"step": self.trainer.step_number, "phase": phase, "split": "dev", "accuracy": accuracy}
        self._append("evaluations", line)
        if phase == self.trainer.phase and accuracy > self.best.get(phase, -1.0):  # SPION may just have gone sparse
            self.best[phase] = accuracy
            self._save(f"best_{phase}")

    def _save(self, name: str = "checkpoint") -> None:
        self._note_peak(self.trainer.phase)
        notes = {"seconds": self._seconds(), "peak_bytes": self.peak_bytes, "best": self.best}
        self.trainer.save(self.folder / f"{name}.pt", **notes)

    def _note_peak(self, phase: str) -> None:
        """Of `phase`, since the last note: called before another phase begins."""
        if self.trainer.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.trainer.device)
            self.peak_bytes[phase] = max(peak, self.peak_bytes.get(phase, 0))
            torch.cuda.reset_peak_memory_stats(self.trainer.device)

    def _finish(self) -> None:
        trainer = self.trainer
        accuracy = trainer.evaluate(trainer.data.test)
        if not self.writes:
            return
        patterns = [a.pattern.int().tolist() for a in trainer.attentions if getattr(a, "pattern", None) is not None]
        results = {
            "splits": trainer.data.describe(trainer.recipe.classes),
            "test_accuracy": accuracy,
            "best_dev": self.best,
            "phase": trainer.phase,
            "seconds": self._seconds(),
            "peak_bytes": self.peak_bytes,
            "patterns": patterns,
        }
        self._write("run", self._settings() | results)

    def _settings(self) -> dict[str, Any]:
        """What is known before the first step: of a run that is stopped, all that says what it was."""
        trainer = self.trainer
        return {
            **{name: value for name, value in dataclasses.asdict(self.run).items() if name != "data"},  # a user's path
            "steps": trainer.recipe.steps,
            "batch": trainer.recipe.batch,
            **self._thresholds(),
            "recipe": dataclasses.asdict(trainer.recipe),
            "source": trainer.data.source,
            "processes": trainer.processes,
            "deterministic": trainer.repeatable,
            "device_name": torch.cuda.get_device_name() if trainer.device.type == "cuda" else "cpu",
            "commit": provenance.commit(),
        }

    def _thresholds(self) -> dict[str, float | None]:
        """Of SAT's transition, as they were; None for a method that has none."""
        monitor, watched = self.trainer.monitor, self.trainer.method.transition == "sat"
        return {name: getattr(monitor, name) if watched else None for name in ("min_skewness", "max_change")}

    def _seconds(self) -> float:
        """Of the run, in this process and those before it; not the time between them."""
        return round(time.monotonic() - self.began, 4)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.folder / f"{name}.json", lambda path: path.write_text(json.dumps(content) + "\n"))

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if self.writes:
            with (self.folder / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _cut(self, path: Path) -> None:
        """Drop the lines of steps that will be done again, and a line cut by a kill."""
        first = self.first_step + (path.stem == "evaluations")
        kept = [json.dumps(line) + "\n" for line in read_log(path) if line["step"] < first]
        write_atomically(path, lambda temporary: temporary.write_text("".join(kept)))
