"""What a config needs before anything runs: rows, memory, minutes. Imports no torch and starts nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.cell import classify
from harness.config import Config, load_config
from harness.contender import Contender, Target
from harness.energy import DEFAULT_PERIOD_S, TICKS
from harness.errors import MachineError
from harness.machine import find_target
from harness.timing import FEWEST_ROUNDS

# Minutes are an estimate: windows follow from the config, the rest was read off runs of the shipped configs on two
# CPU cores and on an H200.
JOB_S = {"cpu": 4.0, "cuda": 10.0}  # one panel: two processes, importing torch, waking the device
ROW_S = {"cpu": 0.1, "cuda": 0.35}  # one row: inputs, set-up, both passes of the gate
RATE = {"cpu": 2e10, "cuda": 5e13}  # useful FLOP/s of a middling contender
ENERGY_S = 3.0  # one energy cell beside its windows: idle power, waiting for ticks


@dataclass(frozen=True)
class PanelPlan:
    """What one panel will take on `Target`."""

    name: str
    headline: bool
    rows: int
    refused: Counter[tuple[str, str, str]]  # (status, contender, reason): rows that will not be timed
    peak_bytes: int
    seconds: float


def plan_panel(config: Config, name: str, target: Target) -> PanelPlan:
    experiment, _, panel = name.partition("/")
    contenders = config.contenders(config.experiments[experiment].op)
    rows = config.rows(name)
    refused: Counter[tuple[str, str, str]] = Counter()
    seconds, peak, cases = JOB_S[target.device], 0, set()
    for case, contender in rows:
        if refusal := _refusal(contenders[contender], case.params, target):
            status, reason = refusal
            refused[status, contender, reason] += 1
            continue
        peak = max(peak, case.op.peak_bytes_estimate(case.params))
        call = case.op.flops(case.params) / RATE[target.device]
        references = 1 if case.id in cases else 2  # the case's own, and as long again to make each contender
        cases.add(case.id)
        seconds += references * case.op.reference_flops(case.params) / RATE[target.device]
        seconds += ROW_S[target.device] + config.measure.warmup_s + 2 * _window(config, call, target)
        if contender in case.energy and target.is_cuda:
            window = max(config.energy.window_s, TICKS * DEFAULT_PERIOD_S)
            seconds += ENERGY_S + config.energy.settle_s + config.energy.trials * window
    return PanelPlan(name, config.panel(experiment, panel).headline, len(rows), refused, peak, seconds)


def _refusal(contender: Contender, params: Any, target: Target) -> tuple[str, str] | None:
    """As the row's record will have it, also where a user's contender fails at the question."""
    try:
        return contender.refusal(params, target)
    except Exception as error:
        return classify(error)


def _window(config: Config, call_s: float, target: Target) -> float:
    """Seconds in which one metric is timed. A GPU is steady enough for the stopping rule's least; a CPU is not."""
    measure = config.measure
    calls = max(measure.min_samples, measure.rounds) * call_s
    window = min(max(measure.min_time_s, calls), measure.max_time_s) if target.is_cuda else measure.max_time_s
    return max(window, FEWEST_ROUNDS * call_s)


def print_plan(path: str | Path) -> None:
    """Print rows, memory and minutes per panel, and what will not run. Raises ConfigError."""
    config = load_config(path)
    try:
        target = find_target(config.device)
    except MachineError:
        number = config.architectures[-1].removeprefix("sm_").rstrip("a")
        target = Target("cuda", config.gpu or "GPU", (int(number[:-1]), int(number[-1])))
    plans = [plan_panel(config, name, target) for name in config.panel_names()]
    console = Console(highlight=False)
    table = Table(title=f"{path}: run {config.run} on {target.name}")
    table.add_column("panel", overflow="fold")
    for name in ("rows", "to time", "memory", "minutes"):
        table.add_column(name, justify="right")
    for plan in plans:
        label = f"{plan.name} *" if plan.headline else plan.name
        timed = plan.rows - plan.refused.total()
        table.add_row(label, f"{plan.rows}", f"{timed}", _size(plan.peak_bytes), f"{plan.seconds / 60:.1f}")
    console.print(table)
    rows, seconds = sum(p.rows for p in plans), sum(p.seconds for p in plans)
    peak = max(p.peak_bytes for p in plans)
    headline = sum(p.seconds for p in plans if p.headline)
    console.print(f"{rows} rows, at most {_size(peak)}, about {math.ceil(seconds / 60)} minutes", end="")
    console.print(f"; {math.ceil(headline / 60)} for the headline panels (*), which come first" if headline else "")
    if config.budget_min:
        console.print(f"The budget stops it cleanly after {config.budget_min:g} minutes of measuring.")
    if target.memory_bytes and peak > target.memory_bytes:
        console.print(
            f"{target.name} has {_size(target.memory_bytes)}: rows that do not fit are recorded out_of_memory."
        )
    for (status, contender, reason), count in sum((p.refused for p in plans), Counter()).items():
        console.print(f"{status}: {contender} ({count} rows): {reason}", soft_wrap=True, markup=False)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**29 else f"{count / 2**20:.0f} MiB"
