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

from impl.cuda.model.gpu import OF_SM, PIPES, QUEUED, SCHEDULERS

QUEUE = 5  # instructions of a scheduler that a queue holds (Huerta et al., arXiv 2503.20481)
OPERANDS_READ = 9  # clocks after which a queued instruction has read its registers (the same)
_BARRIERS = 6
_RESULT = {pipe: f"{pipe} result" for pipe in PIPES}
_OPERANDS = {pipe: f"{pipe} operands" for pipe in PIPES}
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
    issued = sm.issued
    clocks = sm.run_until(all_passes) - begin
    passes = (sm.issued - issued) / len(steps)
    total = sum(sm.waiting.values())
    return Timing(
        clocks * SCHEDULERS / passes,
        {reason: share / total for reason, share in Counter(sm.waiting).most_common()},
    )


@dataclass(eq=False, slots=True)
class _Scheduler:
    order: list[_Warp]  # the one that it issued last, then the one that has waited longest
    soonest: float = 0.0  # before, none of its warps can be issued
    operands_read: float = 0.0  # by the register file, of those before
    free: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # when its own pipes are
    accepts: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the clock that a pipe does from
    queues: dict[str, deque[float]] = field(
        default_factory=lambda: {pipe: deque([0.0] * QUEUE, maxlen=QUEUE) for pipe in QUEUED}
    )


@dataclass(eq=False, slots=True)
class _Warp:
    block: int
    next: Step
    scheduler: _Scheduler
    issued: int = 0  # steps, through all passes
    since: float = 0.0  # of the last issue
    ready: float = 0.0  # when the next step may be issued, as far as the warp itself goes; never while it is held
    reason: str = "stall"  # what `ready` waits for
    barriers: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "")] * _BARRIERS)


class _Sm:
    """Millions of steps: what nothing has changed since the last clock is not looked at again."""

    def __init__(self, steps: Sequence[Step], warps_per_block: int, blocks: int):
        self._steps = steps
        self._schedulers = [_Scheduler([]) for _ in range(SCHEDULERS)]
        self._warps = [
            _Warp(b, steps[0], self._schedulers[w % SCHEDULERS]) for b in range(blocks) for w in range(warps_per_block)
        ]
        for warp in self._warps:
            warp.scheduler.order.append(warp)
        self.issued = 0  # steps of all warps
        self.waiting: dict[str, float] = defaultdict(float)
        self._clock = 0
        self._free: dict[str, float] = defaultdict(float)  # when the pipes of the SM are

    def run_until(self, passes: int) -> int:
        """Go on until the warps have made so many passes in the mean; returns the clock."""
        wanted = passes * len(self._steps) * len(self._warps)
        while self.issued < wanted:
            for scheduler in self._schedulers:
                if scheduler.soonest <= self._clock:
                    scheduler.soonest = self._issue_one(scheduler)
            self._clock = max(self._clock + 1, math.ceil(min(s.soonest for s in self._schedulers)))
        return self._clock

    def _issue_one(self, scheduler: _Scheduler) -> float:
        """Issue of one of a scheduler's warps, if one can; returns when the next might."""
        soonest, clock, operands_read = math.inf, self._clock, math.floor(scheduler.operands_read)
        for place, warp in enumerate(scheduler.order):
            when = warp.ready
            if when <= clock:
                when = scheduler.accepts[warp.next.pipe]
                if when < operands_read:
                    when = operands_read
                if when <= clock:
                    if place:
                        scheduler.order.insert(0, scheduler.order.pop(place))
                    self._issue(warp, when)
                    return clock + 1
            if when < soonest:
                soonest = when
        return soonest

    def _issue(self, warp: _Warp, taken: float) -> None:
        step, now, scheduler = warp.next, self._clock, warp.scheduler
        pipe = step.pipe
        self._account(warp, taken)
        free = self._free if pipe in OF_SM else scheduler.free
        start = free[pipe]
        if start < now:
            start = now
        done = free[pipe] = start + step.service
        if step.reads or scheduler.operands_read < now:
            scheduler.operands_read = max(now, scheduler.operands_read) + step.reads
        if pipe in QUEUED:
            queue = scheduler.queues[pipe]
            queue.append(start)
            scheduler.accepts[pipe] = queue[0]
        else:
            scheduler.accepts[pipe] = math.floor(done)
        if step.transfer:
            done = self._free["transfer"] = max(start, self._free["transfer"]) + step.transfer
        if step.copied:
            self._free["shared"] = max(start, self._free["shared"]) + step.copied
        if step.write_barrier is not None:
            _count_up(warp, step.write_barrier, done + step.latency, _RESULT[pipe])
        if step.read_barrier is not None:
            _count_up(warp, step.read_barrier, start + OPERANDS_READ, _OPERANDS[pipe])
        self.issued += 1
        warp.issued += 1
        warp.next = self._steps[warp.issued % len(self._steps)]
        if pipe == "barrier":
            self._arrive(warp, step)
        else:
            _prepare(warp, now + (step.stall or 1), "stall")

    def _arrive(self, warp: _Warp, step: Step) -> None:
        warp.ready = math.inf
        block = [w for w in self._warps if w.block == warp.block]
        if all(w.ready == math.inf for w in block):
            for w in block:
                _prepare(w, self._clock + max(step.stall, step.latency), "barrier")
                w.scheduler.soonest = min(w.scheduler.soonest, w.ready)

    def _account(self, warp: _Warp, taken: float) -> None:
        """Book the clocks since the warp's last issue under their reasons."""
        waiting, ready, now = self.waiting, warp.ready, self._clock
        waiting["issued"] += 1
        waiting[warp.reason] += ready - warp.since - 1
        if ready < taken:
            waiting[warp.next.pipe] += taken - ready
            ready = taken
        if ready < now:
            waiting["other warps"] += now - ready
        warp.since = now


def _count_up(warp: _Warp, barrier: int, until: float, reason: str) -> None:
    if warp.barriers[barrier] < (until, reason):
        warp.barriers[barrier] = until, reason


def _prepare(warp: _Warp, ready: float, reason: str) -> None:
    """Set when and why the warp can go on, from its own state."""
    for barrier in warp.next.waits:
        if warp.barriers[barrier][0] > ready:
            ready, reason = warp.barriers[barrier]
    warp.ready, warp.reason = ready, reason
