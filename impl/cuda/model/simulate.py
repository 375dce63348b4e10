"""How long a pass of the main loop takes on one SM: its warps, issued in order by four schedulers.

A warp issues its next instruction when the stall that the compiler wrote behind the last one is over, the barriers
that the instruction waits for are down, the register file has read the operands of those before it, and its pipe takes
it. A scheduler issues one instruction a clock: of the warp
that it issued last while that can go on, else of the one that has waited longest. A pipe with a queue takes an
instruction while the queue has room; shared memory and the way to L2 are one pipe for the whole SM. Blocks are
independent; BAR.SYNC holds the warps of one together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from impl.cuda.model.gpu import OF_SM, QUEUED, SCHEDULERS

QUEUE = 5  # instructions of a scheduler that a queue holds (Huerta et al., arXiv 2503.20481)
OPERANDS_READ = 9  # clocks after which a queued instruction has read its registers (the same)
_BARRIERS = 6
_PASSES = 8  # at least; more of short loops, whose warps take longer to settle
_STEPS = 6_000


@dataclass(frozen=True)
class Step:
    """An instruction as the simulation sees it.

    service: clocks that it takes of its pipe. latency: clocks from there to its result. transfer: clocks that its data
    take of the SM's way to L2. copied: clocks of shared memory that they take, of a cp.async. reads: clocks that the
    register file takes for its operands. The others are those of `Instruction`.
    """

    pipe: str
    service: float
    latency: int
    stall: int = 1
    write_barrier: int | None = None
    read_barrier: int | None = None
    waits: tuple[int, ...] = ()
    transfer: float = 0.0
    copied: float = 0.0
    reads: float = 0.0


@dataclass(frozen=True)
class Timing:
    """clocks: of one scheduler for one warp's pass, in the steady state.

    waiting: shares of the warps' time by reason, the largest first: "issued"; "stall", which the compiler asked for;
    "barrier", of the block; "other warps", which the scheduler took first; a pipe that was busy, or the operands of the
    instruction before were being read; a pipe with "result" or "operands", which were not there, or not read.
    """

    clocks: float
    waiting: Mapping[str, float]


def simulate(steps: Sequence[Step], warps_per_block: int, blocks: int) -> Timing:
    """Passes of all warps of `blocks` blocks that share an SM; the first quarter of them is not timed."""
    sm = _Sm(steps, warps_per_block, blocks)
    all_passes = max(_PASSES, _STEPS // len(steps))
    begin = sm.run_until(all_passes // 4)
    sm.waiting.clear()
    issued = sum(warp.issued for warp in sm.warps)
    clocks = sm.run_until(all_passes) - begin
    passes = (sum(warp.issued for warp in sm.warps) - issued) / len(steps)
    total = sum(sm.waiting.values())
    return Timing(clocks * SCHEDULERS / passes, {reason: share / total for reason, share in sm.waiting.most_common()})


@dataclass(eq=False)
class _Warp:
    block: int
    scheduler: int
    next: Step
    issued: int = 0  # steps, through all passes
    since: float = 0.0  # of the last issue
    ready: float = 0.0  # when the next step may be issued, as far as the warp itself goes; never while it is held
    reason: str = "stall"  # what `ready` waits for
    barriers: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "")] * _BARRIERS)


class _Sm:
    def __init__(self, steps: Sequence[Step], warps_per_block: int, blocks: int):
        self._steps = steps
        self.warps = [_Warp(b, w % SCHEDULERS, steps[0]) for b in range(blocks) for w in range(warps_per_block)]
        self.waiting: Counter[str] = Counter()
        self._clock = 0
        self._order = [[w for w in self.warps if w.scheduler == s] for s in range(SCHEDULERS)]
        self._free: dict[tuple[int, str], float] = defaultdict(float)
        self._queues: dict[tuple[int, str], deque[float]] = defaultdict(lambda: deque([0.0] * QUEUE, maxlen=QUEUE))

    def run_until(self, passes: int) -> int:
        """Go on until the warps have made so many passes in the mean; returns the clock."""
        wanted = passes * len(self._steps) * len(self.warps)
        while sum(warp.issued for warp in self.warps) < wanted:
            soonest = min(map(self._issue_one, self._order))
            self._clock = max(self._clock + 1, math.ceil(soonest))
        return self._clock

    def _issue_one(self, order: list[_Warp]) -> float:
        """Issue of one of a scheduler's warps, if one can; returns when the next might."""
        soonest = math.inf
        for warp in order:
            when = warp.ready
            if when <= self._clock:
                taken = self._accepts(warp)
                if taken <= self._clock:
                    self._issue(warp, taken)
                    order.remove(warp)
                    order.insert(0, warp)
                    return self._clock + 1
                when = taken
            if when < soonest:
                soonest = when
        return soonest

    def _accepts(self, warp: _Warp) -> float:
        """When the register file and the pipe of the warp's next step take it."""
        scheduler, pipe = warp.scheduler, warp.next.pipe
        pipe_free = self._queues[scheduler, pipe][0] if pipe in QUEUED else math.floor(self._free[scheduler, pipe])
        return max(pipe_free, math.floor(self._free[scheduler, "registers"]))

    def _issue(self, warp: _Warp, taken: float) -> None:
        step, now, free = warp.next, self._clock, self._free
        self._account(warp, taken)
        unit = (0 if step.pipe in OF_SM else warp.scheduler, step.pipe)
        start = max(now, free[unit])
        done = free[unit] = start + step.service
        free[warp.scheduler, "registers"] = max(now, free[warp.scheduler, "registers"]) + step.reads
        if step.pipe in QUEUED:
            self._queues[warp.scheduler, step.pipe].append(start)
        if step.transfer:
            done = free[0, "transfer"] = max(start, free[0, "transfer"]) + step.transfer
        if step.copied:
            free[0, "shared"] = max(start, free[0, "shared"]) + step.copied
        if step.write_barrier is not None:
            _count_up(warp, step.write_barrier, done + step.latency, f"{step.pipe} result")
        if step.read_barrier is not None:
            _count_up(warp, step.read_barrier, start + OPERANDS_READ, f"{step.pipe} operands")
        warp.issued += 1
        warp.next = self._steps[warp.issued % len(self._steps)]
        if step.pipe == "barrier":
            self._arrive(warp, step)
        else:
            _prepare(warp, now + max(1, step.stall), "stall")

    def _arrive(self, warp: _Warp, step: Step) -> None:
        warp.ready = math.inf
        block = [w for w in self.warps if w.block == warp.block]
        if all(w.ready == math.inf for w in block):
            for w in block:
                _prepare(w, self._clock + max(step.stall, step.latency), "barrier")

    def _account(self, warp: _Warp, taken: float) -> None:
        """Book the clocks since the warp's last issue under their reasons."""
        accepted = max(warp.ready, taken)
        self.waiting["issued"] += 1
        self.waiting[warp.reason] += warp.ready - warp.since - 1
        self.waiting[warp.next.pipe] += accepted - warp.ready
        self.waiting["other warps"] += self._clock - accepted
        warp.since = self._clock


def _count_up(warp: _Warp, barrier: int, until: float, reason: str) -> None:
    warp.barriers[barrier] = max(warp.barriers[barrier], (until, reason))


def _prepare(warp: _Warp, ready: float, reason: str) -> None:
    """Set when and why the warp can go on, from its own state."""
    for barrier in warp.next.waits:
        if warp.barriers[barrier][0] > ready:
            ready, reason = warp.barriers[barrier]
    warp.ready, warp.reason = ready, reason
