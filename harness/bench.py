"""One case: its contenders prepared, held against the gate, timed interleaved, held against it again, and recorded."""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness import provenance
from harness.case import Case
from harness.cell import Cell, classify, draft
from harness.config import Config
from harness.contender import Prepared, Target
from harness.energy import EnergyMeter
from harness.lazy import lazy_import
from harness.nvml import Card, CardState
from harness.timers import CaptureFailed, CpuTimer, CudaTimer, Run, Timer
from harness.timing import Timings, time_interleaved
from harness.verify import Gate, Verdict, check_exact, poison, poison_allocator

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.base import Tensors

torch = lazy_import("torch")

GRAPH_MEMORY_SHARE = 0.1  # a call that needs more of the device is not captured: a graph would hold it twice
PART_SAMPLES = 5  # of each part of a call, hot
DEVICE_PAGE = 2**21  # bytes; device memory outside torch grows by these


class ContextLost(Exception):
    """The CUDA context is unusable after an error in `contender`: nothing more can run in this process."""

    def __init__(self, contender: str, reason: str):
        super().__init__(reason)
        self.contender, self.reason = contender, reason


class Uncapturable(Exception):
    """`contender` cannot be captured in a CUDA graph, and trying has spoilt this process."""

    def __init__(self, contender: str):
        super().__init__(contender)
        self.contender = contender


@dataclass
class Bench:
    """What all cases of a panel share: the machine, and the way to tell the parent process what goes on."""

    config: Config
    target: Target
    machine: dict[str, Any]  # record columns
    card: Card | None
    energy: EnergyMeter | str  # or the reason why there is none
    flush: Tensor
    begin: Callable[[str | None, str], None]  # (contender, stage); restarts the parent's timeout
    uncapturable: frozenset[str] = field(default_factory=frozenset)  # contenders that are not to be captured

    def cells(self, case: Case, wanted: list[str], companion: str | None) -> list[Cell]:
        """Cells for the contenders `wanted`, and for `companion`, which is measured beside them for the ratios."""
        contenders = self.config.contenders(case.op.name)
        names = [*wanted, companion] if companion else wanted
        return [Cell(contenders[n], draft(self.config, case, contenders[n], self.machine), n in wanted) for n in names]

    def measure(self, case: Case, cells: list[Cell]) -> None:
        """Bring every cell to its end.

        Raises ContextLost or Uncapturable when this process can do no more; cells may then be unfinished.
        """
        for cell in cells:
            with self._stage(cell, "check"):
                if refusal := cell.contender.refusal(case.params, self.target):
                    cell.end(*refusal)
        if any(cell.going for cell in cells) and (made := self._inputs(case, cells)):
            self._prepare_all(case, cells, *made)
            self._time_all(case, cells)
        libraries = json.dumps(provenance.library_versions())
        for cell in cells:
            cell.release()
            cell.record.libraries = libraries

    def _inputs(self, case: Case, cells: list[Cell]) -> tuple[Tensors, Tensors] | None:
        """The case's inputs and a copy of them; where making them fails, every cell ends with that reason."""
        self.begin(None, "inputs")
        try:
            inputs = case.op.inputs(case.params, self.target.device)
            for column, value in case.op.counted(case.params, inputs).items():
                for cell in cells:
                    setattr(cell.record, column, value)
            return inputs, {name: tensor.clone() for name, tensor in inputs.items()}
        except Exception as error:
            status, reason = classify(error)
            for cell in cells:
                if cell.going:
                    cell.end(status, f"making the inputs: {reason}")
            self._raise_if_lost(cells[0], error)
            return None

    def _prepare_all(self, case: Case, cells: list[Cell], inputs: Tensors, originals: Tensors) -> None:
        gates: dict[Any, tuple[Gate, Tensors]] = {}
        for cell in cells:
            if cell.going:
                with self._stage(cell, "prepare"):
                    began = time.perf_counter()
                    prepared = cell.contender.prepare(case.params, inputs, self.target)
                    self._synchronize()
                    cell.take_prepared(prepared, time.perf_counter() - began)
                self._restore(cell, inputs, originals)
            if cell.going:
                with self._stage(cell, "verify"):
                    self._verify(case, cell, inputs, gates)
                self._restore(cell, inputs, originals)

    def _restore(self, cell: Cell, inputs: Tensors, originals: Tensors) -> None:
        """End a cell that has written to its inputs, and undo it: they are the other contenders' too."""
        for name, original in originals.items():
            if not torch.equal(inputs[name], original):
                inputs[name].data.copy_(original)  # .data: autograd of the others need not know
                cell.end("incorrect", f"it writes to its input {name}, which all contenders share")

    def _verify(self, case: Case, cell: Cell, inputs: Tensors, gates: dict[Any, tuple[Gate, Tensors]]) -> None:
        """The gate before timing, on outputs that were NaN; also what a call needs in memory."""
        began = time.perf_counter()
        prepared = cell.prepared
        if prepared.expected is None:
            params, its_inputs = cell.contender.reference_case(case.params, inputs)
            key = (params, tuple(sorted((name, id(t)) for name, t in its_inputs.items())))
            if key not in gates:
                gates[key] = Gate(case.op, params, its_inputs), its_inputs  # held, so that no id comes back
            cell.gate = gates[key][0]
            poison_allocator(cell.gate.shapes().values(), cell.gate.dtype, self.target.device)
        first_s, outputs = self._timed_call(prepared)
        poison(outputs)
        del outputs
        second_s, outputs = self._measured_call(cell, prepared)
        # What only a first call does (compile, load, choose) is set-up.
        cell.record.setup_s += max(0.0, first_s - second_s)
        cell.take_verdict(self._judge(cell, outputs))
        cell.record.verify_s = time.perf_counter() - began

    def _measured_call(self, cell: Cell, prepared: Prepared) -> tuple[float, dict[str, Tensor]]:
        """A call, and its peak memory where the device tells it."""
        if not self.target.is_cuda:
            return self._timed_call(prepared)
        gc.collect()  # garbage that is freed during the call would hide as much of what it takes
        torch.cuda.reset_peak_memory_stats()
        before, outside = torch.cuda.memory_allocated(), _bytes_outside_torch()
        result = self._timed_call(prepared)
        cell.record.peak_bytes = torch.cuda.max_memory_allocated() - before
        if (grown := _bytes_outside_torch() - outside) > DEVICE_PAGE:
            cell.add_note(f"a call took {grown} bytes of device memory outside torch's allocator")
        return result

    def _timed_call(self, prepared: Prepared) -> tuple[float, dict[str, Tensor]]:
        began = time.perf_counter()
        outputs = prepared.run()
        self._synchronize()
        return time.perf_counter() - began, outputs

    def _judge(self, cell: Cell, outputs: dict[str, Tensor]) -> Verdict:
        expected = cell.prepared.expected
        return cell.gate.check(outputs) if expected is None else check_exact(outputs, expected)

    def _time_all(self, case: Case, cells: list[Cell]) -> None:
        pool = torch.cuda.graph_pool_handle() if self.target.is_cuda else None
        for cell in cells:
            if cell.going and not cell.prepared.no_times:
                with self._stage(cell, "set up timing"):
                    cell.timer = self._timer(cell, cell.prepared.run, pool)
            elif cell.going and cell.name in case.energy:
                cell.record.energy_quality = cell.prepared.no_times
        timed = {cell.name: cell for cell in cells if cell.timer}
        timings = time_interleaved(
            {name: cell.timer for name, cell in timed.items()},
            self.config.measure,
            self.card.state if self.card else CardState,
            lambda name: self.begin(name, "time"),
            lambda name, error: self._raise_if_lost(timed[name], error),
            random.Random(case.id),
        )
        for name, cell in timed.items():
            self._verify_again(cell, timings[name])
        still_right = {name: timings[name] for name, cell in timed.items() if cell.going}
        for name in still_right:
            cell = timed[name]
            cell.take_times(timings[name], still_right.get(cell.record.baseline))
            if cell.going and cell.prepared.parts:
                with self._stage(cell, "parts"):
                    self._time_parts(cell, pool)
            if cell.going and cell.wanted and name in case.energy:
                with self._stage(cell, "energy"):
                    self._take_energy(cell)

    def _timer(self, cell: Cell, run: Run, pool: Any) -> Timer:
        if not self.target.is_cuda:
            return CpuTimer(run, self.flush)
        small = (cell.record.peak_bytes or 0) < GRAPH_MEMORY_SHARE * self.target.memory_bytes
        captured = small and cell.prepared.graphable and cell.name not in self.uncapturable
        return CudaTimer(run, self.flush, pool if captured else None)

    def _time_parts(self, cell: Cell, pool: Any) -> None:
        began = time.perf_counter()
        timers = {part: self._timer(cell, run, pool) for part, run in cell.prepared.parts.items()}
        cell.take_parts({part: statistics.median(timer.hot(PART_SAMPLES)) for part, timer in timers.items()})
        cell.record.window_s += time.perf_counter() - began

    def _verify_again(self, cell: Cell, timings: Timings) -> None:
        """The gate on what the timed calls leave, before any time is believed, also as a baseline's."""
        cell.record.window_s = timings.window_s
        if timings.error:
            cell.end(*classify(timings.error))
            return
        with self._stage(cell, "verify again"):
            began = time.perf_counter()
            cell.take_verdict(self._judge(cell, cell.timer.outputs()), "after timing: ")
            cell.record.verify_s += time.perf_counter() - began

    def _take_energy(self, cell: Cell) -> None:
        if isinstance(self.energy, str):
            cell.record.energy_quality = self.energy
            return
        began = time.perf_counter()
        try:
            cell.take_energy(self.energy.measure(cell.timer.load))
        except Exception as error:  # its times are there, and stay, unless the context is lost
            cell.record.energy_quality = f"failed: {classify(error)[1]}"
            self._recover(cell, error)
        cell.record.window_s += time.perf_counter() - began

    @contextmanager
    def _stage(self, cell: Cell, stage: str) -> Iterator[None]:
        """One step of one cell: told to the parent before; an error in it ends that cell only."""
        self.begin(cell.name, stage)
        try:
            yield
        except CaptureFailed as error:
            raise Uncapturable(cell.name) from error
        except Exception as error:
            cell.end(*classify(error))
            self._recover(cell, error)

    def _recover(self, cell: Cell, error: Exception) -> None:
        """Give back what an error has left in memory; raises ContextLost where this process can do no more."""
        self._raise_if_lost(cell, error)
        error.with_traceback(None)  # whose frames would keep the contender's memory
        gc.collect()
        if self.target.is_cuda:
            torch.cuda.empty_cache()

    def _raise_if_lost(self, cell: Cell, error: Exception) -> None:
        """Raise ContextLost when an error has left the CUDA context unusable."""
        try:
            self._synchronize()
        except RuntimeError:
            raise ContextLost(cell.name, classify(error)[1]) from error

    def _synchronize(self) -> None:
        if self.target.is_cuda:
            torch.cuda.synchronize()


def _bytes_outside_torch() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
