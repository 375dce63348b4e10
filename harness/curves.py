"""Loss curves: a decoder trained with each attention from the same weights on the same text, once per seed.

The text is the source of Python's standard library, by bytes. A curve that is there for the same settings and code is
kept, so that an interrupted training goes on; one that failed is a row with its status and reason, and is tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from harness import provenance
from harness.cell import classify
from harness.collect import schema, write_atomically
from harness.config import Config, TrainingCurves, load_config
from harness.contender import Target
from harness.errors import ConfigError
from harness.lazy import lazy_import
from harness.locks import hold_one
from harness.machine import check_machine
from harness.measure import candidates
from harness.records import CurvePoint

if TYPE_CHECKING:
    from harness.exchange import TrainingStepContender

torch = lazy_import("torch")


def corpus() -> np.ndarray:
    """The modules of the standard library one after the other, as bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def batches(settings: TrainingCurves, seed: int, text: np.ndarray) -> np.ndarray:
    """[steps, batch, seqlen + 1] bytes, from random places of `text`."""
    generator = np.random.default_rng(seed)
    starts = generator.integers(len(text) - settings.seqlen, size=(settings.steps, settings.batch, 1))
    return text[starts + np.arange(settings.seqlen + 1)]


def train(
    settings: TrainingCurves, contender: TrainingStepContender, seed: int, text: np.ndarray, target: Target
) -> list[float]:
    """The mean loss of each step, nats per byte."""
    from harness.ops.transformer import Training, draw_weights, with_weights

    params = settings.params(seed)
    options = {"generator": torch.Generator(target.device).manual_seed(seed), "device": target.device}
    weights = draw_weights(params.shape, params.seqlen, options)
    attention = contender.attention.function(params.attention("forward"), target)
    training = Training(
        with_weights(params.shape, weights, torch.float32, attention),
        getattr(torch, params.dtype),
        settings.learning_rate,
    )
    data = torch.from_numpy(batches(settings, seed, text)).to(target.device, torch.int64)
    losses = [training.step(batch[:, :-1], batch[:, 1:].flatten())["losses"].mean() for batch in data]
    return torch.stack(losses).tolist()


def train_curves(config_path: str | Path) -> None:
    """Write results/<run>/curves.parquet, the columns of `CurvePoint`, training what is not there yet.

    Raises ConfigError for a config that is bad or names no trainings, MachineError where the machine is not its.
    """
    config = load_config(config_path)
    if config.training_curves is None:
        raise ConfigError(f"{config_path}: training_curves: missing, so no curve to train; config/smoke.yaml has one")
    target = check_machine(config)
    console = Console(stderr=True, highlight=False)
    devices = candidates(config)
    with contextlib.ExitStack() as held:
        if config.device == "cuda":  # where it would disturb a measurement
            free = hold_one(list(devices), lambda said: console.print(said, soft_wrap=True), lambda: False)
            device = held.enter_context(free)
            os.environ["CUDA_VISIBLE_DEVICES"] = devices[device].uuid  # before torch is loaded
        rows = [row for curve in _curves(config, target, console) for row in _rows(curve)]
    table = pa.Table.from_pylist(rows, schema=schema(CurvePoint))
    write_atomically(config.results / "curves.parquet", lambda path: pq.write_table(table, path))


def _curves(config: Config, target: Target, console: Console) -> list[dict[str, Any]]:
    """Each curve as its file has it."""
    settings, text, found = config.training_curves, corpus(), []
    training = settings.model_dump(mode="json", exclude={"seeds", "contenders", "baseline"})
    known = config.contenders("training_step")
    for seed in settings.seeds:
        for name in settings.contenders:
            path = config.results / "curves" / f"{name}.seed{seed}.json"
            wanted = {"settings": training, "code_hash": known[name].code_hash(), "status": "ok"}
            curve = json.loads(path.read_text()) if path.exists() else {}
            if any(curve.get(key) != value for key, value in wanted.items()):
                curve = {**wanted, **_train_or_say_why(config, known[name], seed, text, target)}
                write_atomically(path, lambda part, curve=curve: part.write_text(json.dumps(curve) + "\n"))
            ended = f"{curve['losses'][-1]:.3f}" if curve["losses"] else f"{curve['status']}: {curve['reason']}"
            console.print(f"{name}, seed {seed}: {ended}", markup=False, soft_wrap=True)
            found.append({**curve, "baseline": settings.baseline})
    return found


def _train_or_say_why(
    config: Config, contender: TrainingStepContender, seed: int, text: np.ndarray, target: Target
) -> dict[str, Any]:
    status, reason, losses = "ok", None, []
    try:
        if refusal := contender.refusal(config.training_curves.params(seed), target):
            status, reason = refusal
        else:
            losses = train(config.training_curves, contender, seed, text, target)
    except Exception as error:
        status, reason = classify(error)
    who = {"contender": contender.name, "role": contender.role, "seed": seed, "status": status, "reason": reason}
    return {**who, "device_name": target.name, "commit": provenance.commit(), "losses": losses}


def _rows(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per step; one without a loss where there is none."""
    shared = {name: curve[name] for name in CurvePoint.model_fields if name in curve}
    return [{**shared, "step": step, "loss": loss} for step, loss in enumerate(curve["losses"])] or [shared]
