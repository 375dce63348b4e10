"""Measure one panel: a worker process does it; this one keeps its records and starts another when it falls.

This process never imports torch. Every (case, contender) leaves a record, whatever happens to the worker; a row that
has one of the contender's present code is not measured again, unless it was unavailable and its package came.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.budget import Budget
from harness.case import Case
from harness.collect import machine_path, write_atomically, write_panel
from harness.config import Config, load_config
from harness.errors import MachineError
from harness.locks import hold_one
from harness.machine import Gpu, check_machine, gpus, is_model
from harness.nvml import Card
from harness.provenance import short_hash
from harness.records import Record
from harness.store import Store, latest, pending, records_path
from harness.supervise import Hang, WorkerProcess
from harness.worker import Job

START_S = 300.0  # a worker may be silent for this long before its first case: importing torch from a slow disk
IDLE_WAIT_S = 10.0  # for a GPU to fall idle before it is called busy
BUSY = 0.05  # utilisation
POLL_S = 0.2


class Stop:
    """Set by SIGINT and SIGTERM within `watched()`: the records so far are safe, then this process ends."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def watched(self) -> Iterator[Stop]:
        def note(number: int, frame: Any) -> None:
            self.signal = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class PanelRun:
    """The rows of a panel that are still to be measured, and what is known of the worker at work on them."""

    def __init__(self, config: Config, config_path: Path, panel: str, store: Store, gpu: Gpu | None, console: Console):
        self._config, self._config_path, self._panel = config, config_path, panel
        self._store, self._gpu, self._console = store, gpu, console
        self._budget = Budget(config)
        self._latest = latest(store.path)
        self._todo: dict[str, dict[str, Case]] = {}  # case id -> contender -> case
        for case, contender in pending(config, panel):
            self._todo.setdefault(case.id, {})[contender] = case
        self._cases = len(self._todo)
        self._began = self._case_began = time.monotonic()
        self._drafts: dict[str, Record] = {}  # of the case the worker is at
        self._at: tuple[str | None, str] = (None, "start")  # contender and stage
        self._uncapturable: set[str] = set()
        self._alone: set[str] = set()  # cases whose companion fell: their rows go on without it

    def run(self, stop: Stop) -> None:
        """Until nothing is left, the budget is spent, or `stop` is set."""
        while self._todo and not stop() and not self._budget.is_spent:
            before = self._progress()
            worker = WorkerProcess(self._job())
            self._drafts, self._at = {}, (None, "start")
            try:
                fate = self._follow(worker, stop)
            finally:
                worker.end()
            if fate and before == self._progress():
                sys.stderr.write(worker.output())
                raise MachineError(f"{self._panel}: the measuring process {fate}")
        if self._todo and self._budget.is_spent:
            left = f"the budget of {self._config.budget_min:g} min is spent, {len(self._todo)} cases left"
            self._console.print(f"{self._panel}: {left}", soft_wrap=True)

    def _progress(self) -> tuple[int, ...]:
        """Grows or shrinks whenever a worker has brought the panel on."""
        return len(self._todo), sum(map(len, self._todo.values())), len(self._uncapturable), len(self._alone)

    def _follow(self, worker: WorkerProcess, stop: Stop) -> str | None:
        """Take in events until the worker ends. How it ended, or None when it was done or told to stop."""
        while not stop():
            timeout_s = self._config.measure.timeout_s if self._drafts else START_S
            try:
                event = worker.next_event(timeout_s, stop)
            except Hang:
                if self._drafts:
                    self._close_unfinished("timeout", f"{self._at[1]}: no end within {timeout_s:g} s")
                return f"said nothing for {timeout_s:g} s"
            if event is None:
                if stop():
                    return None
                fate = worker.how_it_died()
                if self._drafts:
                    self._close_unfinished("crashed", f"{self._at[1]}: {fate}")
                return fate
            if event["event"] == "done" or (event["event"] == "case" and self._budget.is_spent):
                return None
            self._take(event)
        return None

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "machine":
                text = json.dumps(event["machine"], indent=2) + "\n"
                write_atomically(machine_path(self._config, self._panel), lambda path: path.write_text(text))
            case "case":
                self._drafts = {name: Record.model_validate(draft) for name, draft in event["drafts"].items()}
                self._at, self._case_began = (None, "start"), time.monotonic()
            case "begin":
                self._at = event["contender"], event["stage"]
            case "record":
                self._keep(Record.model_validate(event["record"]), event["samples"])
            case "restart":
                self._uncapturable |= {event["uncapturable"]} - {None}
                self._drafts = {}
            case "case_done":
                self._drafts = {}
                self._end_of_case(event["id"])

    def _keep(self, record: Record, samples: list[dict[str, Any]]) -> None:
        if record.contender not in self._todo.get(record.case_id, {}):  # a companion, whose record stands
            self._alone.add(record.case_id)
            return
        self._store.append(record, samples)
        self._latest[record.key()] = record
        del self._todo[record.case_id][record.contender]

    def _close_unfinished(self, status: str, reason: str) -> None:
        """Record how the worker fell for the contender it was at; for all of the case, where it was at none."""
        contender, _ = self._at
        case_id = next(iter(self._drafts.values())).case_id
        blamed = [contender] if contender else [n for n in self._drafts if n in self._todo[case_id]]
        for name in blamed:
            record = self._drafts[name].model_copy(update={"status": status, "reason": reason})
            self._keep(record, [])
        self._console.print(f"  {status}: {', '.join(blamed)}: {reason}", markup=False, soft_wrap=True)
        if self._todo[case_id]:
            self._spend()
        else:
            self._end_of_case(case_id)

    def _spend(self) -> float:
        """Charge the budget with the seconds since the worker came to this case, and return them."""
        seconds = time.monotonic() - self._case_began
        self._budget.spend(seconds)
        return seconds

    def _end_of_case(self, case_id: str) -> None:
        del self._todo[case_id]
        case_s = self._spend()
        done = self._cases - len(self._todo)
        left_s = (time.monotonic() - self._began) / done * len(self._todo)
        statuses = [r.status for r in self._latest.values() if r.case_id == case_id]
        self._console.print(
            f"[{done}/{self._cases}] {case_id}: {statuses.count('ok')} of {len(statuses)} ok, "
            f"{case_s:.1f} s, about {left_s / 60:.0f} min left in {self._panel}",
            markup=False,
            soft_wrap=True,
        )

    def _job(self) -> Job:
        baseline = self._config.experiments[self._panel.partition("/")[0]].baseline
        cases = []
        for case_id, contenders in self._todo.items():
            known = self._record_of(next(iter(contenders.values())), baseline)
            can_run = (known is None or known.status == "ok") and case_id not in self._alone
            beside = can_run and baseline not in contenders
            cases.append({"id": case_id, "wanted": list(contenders), "companion": baseline if beside else None})
        return Job(
            config_path=str(self._config_path),
            panel=self._panel,
            parent=os.getpid(),
            gpu_uuid=self._gpu.uuid if self._gpu else None,
            driver=self._gpu.driver if self._gpu else None,
            cases=cases,
            uncapturable=sorted(self._uncapturable),
        )

    def _record_of(self, case: Case, contender: str) -> Record | None:
        return self._latest.get((case.experiment, case.panel, case.id, contender))


def measure_panel(config_path: str | Path, panel: str) -> None:
    """Measure what the panel `experiment/panel` lacks, then write its table.

    Raises ConfigError for a bad config or panel name; MachineError, before anything is measured, where the machine is
    not the config's, the GPU is in use, or the results cannot be written. Ends the process with 128 + the signal's
    number on SIGINT or SIGTERM.
    """
    config = load_config(config_path)
    config.rows(panel)  # refuses an unknown panel
    check_machine(config)
    console = Console(stderr=True, highlight=False)
    devices = candidates(config)
    with (
        Stop().watched() as stop,
        hold_one(list(devices), lambda text: console.print(text, soft_wrap=True), stop) as device,
    ):
        if not stop():
            gpu = devices[device]
            with Store(records_path(config, panel)) as store:
                if gpu:
                    _check_idle(gpu)
                PanelRun(config, Path(config_path), panel, store, gpu, console).run(stop)
    if stop():
        name = signal.Signals(stop.signal).name
        console.print(f"{panel}: stopped by {name}; its records are safe, run again to go on", soft_wrap=True)
        sys.exit(128 + stop.signal)
    write_panel(config, panel)


def candidates(config: Config) -> dict[str, Gpu | None]:
    """Devices the config may run on, by the name of their lock."""
    if config.device == "cpu":
        return {"cpu": None}
    return {short_hash(g.uuid): g for g in gpus() if is_model(config.gpu, g.name)}


def _check_idle(gpu: Gpu) -> None:
    """Raise MachineError when another process keeps the GPU busy."""
    card = Card(gpu.uuid)
    deadline = time.monotonic() + IDLE_WAIT_S
    while card.other_processes() and (card.utilization() or 0) > BUSY:
        if time.monotonic() > deadline:
            raise MachineError(
                f"{gpu.name}: another process keeps it {card.utilization():.0%} busy; wait for it, or choose another "
                "GPU with CUDA_VISIBLE_DEVICES"
            )
        time.sleep(POLL_S)
