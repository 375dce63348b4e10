"""The process that measures: a loop over a panel's cases, ended by anything that spoils it.

It is started by `measure.py` with a job on stdin and tells what it does as JSON lines on the file descriptor named in
its argument. A crash, a hang or a lost CUDA context takes down this process only; the parent records it and starts
another on what is left.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from harness import provenance
from harness.bench import Bench, ContextLost, Uncapturable
from harness.case import Case
from harness.cell import Cell
from harness.config import load_config
from harness.contender import Target
from harness.energy import EnergyMeter
from harness.lazy import lazy_import
from harness.machine import find_target
from harness.nvml import Card
from harness.store import pack
from harness.timers import flush_buffer

torch = lazy_import("torch")

PR_SET_PDEATHSIG = 1


@dataclass
class Job:
    """What the parent asks for."""

    config_path: str
    panel: str  # experiment/panel
    parent: int  # process id
    gpu_uuid: str | None  # None: the CPU
    driver: str | None
    cases: list[dict[str, Any]]  # {"id", "wanted": [contenders], "companion": contender or None}
    uncapturable: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Worker:
    def __init__(self, job: Job, events: IO[str]):
        self._job, self._events = job, events
        self._config = load_config(job.config_path)
        self._bench = self._make_bench()

    def run(self) -> None:
        experiment, _, name = self._job.panel.partition("/")
        cases = {c.id: c for c in self._config.cases(experiment, self._config.panel(experiment, name))}
        for asked in self._job.cases:
            if not self._run_case(cases[asked["id"]], asked["wanted"], asked["companion"]):
                return  # the parent starts another process on what is left
        self._emit("done")

    def _run_case(self, case: Case, wanted: list[str], companion: str | None) -> bool:
        """Measure a case and emit its records; False when this process can do no more."""
        cells = self._bench.cells(case, wanted, companion)
        self._emit("case", id=case.id, drafts={cell.name: cell.record.model_dump(mode="json") for cell in cells})
        try:
            self._bench.measure(case, cells)
        except ContextLost as lost:
            cell = next(cell for cell in cells if cell.name == lost.contender)
            cell.end("crashed", lost.reason)
            self._emit_record(cell)
            self._emit("restart", uncapturable=None)
            return False
        except Uncapturable as error:
            self._emit("restart", uncapturable=error.contender)
            return False
        for cell in cells:
            if cell.wanted:
                self._emit_record(cell)
        self._emit("case_done", id=case.id)
        gc.collect()
        return True

    def _emit_record(self, cell: Cell) -> None:
        self._emit("record", record=cell.record.model_dump(mode="json"), samples=pack(cell.samples))

    def _emit(self, event: str, **content: Any) -> None:
        self._events.write(json.dumps({"event": event, **content}) + "\n")
        self._events.flush()

    def _make_bench(self) -> Bench:
        job, is_cuda = self._job, self._config.device == "cuda"
        card, reason = self._open_card()
        settings = card.settings() if card else None  # before this process has a context, or it counts as another
        target = _cuda_target() if is_cuda else find_target("cpu")
        machine = {
            "device_name": target.name,
            "commit": provenance.commit(),
            "gpu_id": provenance.short_hash(job.gpu_uuid) if job.gpu_uuid else None,
            "driver": job.driver,
            "config_hash": provenance.config_hash(self._config),
        }
        self._emit("machine", machine={**machine, "host": provenance.host(), "card": settings})
        meter = EnergyMeter(card, self._config.energy, time.perf_counter, time.sleep, random.Random()) if card else None
        flush = flush_buffer(target.device)
        gc.freeze()  # what is imported by now never dies; collecting after each case need not walk it
        return Bench(
            config=self._config,
            target=target,
            machine=machine,
            card=card,
            energy=meter or reason,
            flush=flush,
            begin=lambda contender, stage: self._emit("begin", contender=contender, stage=stage),
            uncapturable=frozenset(job.uncapturable),
        )

    def _open_card(self) -> tuple[Card | None, str]:
        """The card, or None and why there is no energy."""
        if self._job.gpu_uuid is None:
            return None, "the run is on a CPU, whose energy is not measured"
        try:
            return Card(self._job.gpu_uuid), ""
        except RuntimeError as error:
            return None, str(error)


def _cuda_target() -> Target:
    """The visible GPU, with a side stream made current: a backward could not be captured on the default one."""
    torch.cuda.set_stream(torch.cuda.Stream())
    properties = torch.cuda.get_device_properties()
    capability = (properties.major, properties.minor)
    return Target("cuda", properties.name, capability, properties.total_memory)


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, even by SIGKILL: an orphan would go on using the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            sys.exit(1)


def main() -> None:
    job = Job(**json.load(sys.stdin))
    _die_with(job.parent)
    with os.fdopen(int(sys.argv[1]), "w") as events:
        Worker(job, events).run()


if __name__ == "__main__":
    main()
