"""What bounds a kernel's main loop, and how fast it should be: a model, never a measurement (docs/model.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from impl.cuda.build import build
from impl.cuda.model.gpu import OF_SM, PIPE_OF, SCHEDULERS, Gpu
from impl.cuda.model.loop import main_path, ways_to_and_from
from impl.cuda.model.modelled import Access, Modelled
from impl.cuda.model.registers import read_clocks
from impl.cuda.model.simulate import Step, Timing, simulate
from impl.cuda.report import occupancy
from impl.cuda.sass import Instruction, disassemble

_CLOSE = 0.85  # a resource in use for this share of the time is what binds
_PASSES = 2  # of the short block whose beginning and end are timed
_ALL_LEAVE = Step("barrier", 1, 0)  # the next block begins when all warps have ended
_ACCESSES = {"LDS": "ld.shared", "STS": "st.shared", "LDG": "ld.global", "STG": "st.global"}


@dataclass(frozen=True)
class Estimate:
    """One warp's pass of the main loop, in clocks of one scheduler.

    demand: what it asks of each resource, most of `bound_by`. clocks: what it takes when the SM's warps share it.
    binding: `bound_by` where it is in use for 85 % of that time or more, else "latency". waits: what for, most of all.
    ends_clocks: what the beginning and the end of a block add to its passes, beside the SM's other blocks; of a whole
    SM's time, and None where only the loop is modelled.
    """

    hash: str
    instructions: int
    blocks_per_sm: int
    warps_per_scheduler: float
    demand: Mapping[str, float]
    bound_by: str
    clocks: float
    binding: str
    waits: str
    ends_clocks: float | None
    bound_tflops: float
    model_tflops: float


def estimate(modelled: Modelled, gpu: Gpu, traffic: Mapping[Access, float]) -> Estimate:
    """The model of a kernel as built for `gpu`.

    traffic: shared-memory wavefronts, or bytes from or to L2, of one warp instruction, as the emulator counted them; an
    access that it did not meet has no bank conflicts and whole sectors.
    Raises BuildError where it cannot be built or read.
    """
    kernel = modelled.kernel
    cubin = build(kernel, gpu.arch)
    instructions = disassemble(cubin.code)
    path = main_path(instructions, modelled.tensor_flops)
    steps = steps_of(path, gpu, traffic)
    blocks, warps = occupancy(kernel, cubin.resources, gpu.arch).blocks_per_sm, kernel.threads // 32
    timing = simulate(steps, warps, blocks)
    ends = None
    if modelled.grid:
        before, after = (steps_of(way, gpu, traffic) for way in ways_to_and_from(instructions))
        whole = simulate([*before, *steps * _PASSES, *after, _ALL_LEAVE], warps, blocks)
        ends = (whole.clocks - _PASSES * timing.clocks) * blocks * warps / SCHEDULERS
    demand = demand_of(steps)
    tera_per_clock = modelled.tensor_flops * SCHEDULERS * gpu.sm_count * gpu.clock_mhz * 1e-6
    most = max(demand, key=demand.__getitem__)
    return Estimate(
        hash=cubin.hash,
        instructions=len(path),
        blocks_per_sm=blocks,
        warps_per_scheduler=blocks * warps / SCHEDULERS,
        demand=demand,
        bound_by=most,
        clocks=timing.clocks,
        binding=most if demand[most] >= _CLOSE * timing.clocks else "latency",
        waits=_longest_wait(timing),
        ends_clocks=ends,
        bound_tflops=tera_per_clock / demand[most],
        model_tflops=tera_per_clock / timing.clocks,
    )


def launch_tflops(found: Estimate, modelled: Modelled, gpu: Gpu, case: Mapping[str, Any]) -> float:
    """Modelled TFLOP/s of a whole launch on the shape of `case`: waves of blocks, each with its beginning and end."""
    blocks, passes = modelled.grid(case)
    waves = -(-blocks // (gpu.sm_count * found.blocks_per_sm))
    clocks = waves * (passes * found.clocks * found.warps_per_scheduler + found.ends_clocks)
    warp_passes = blocks * passes * modelled.kernel.threads // 32
    return warp_passes * modelled.tensor_flops / clocks * gpu.clock_mhz * 1e-6


def demand_of(steps: Sequence[Step]) -> dict[str, float]:
    """Clocks of a scheduler's time, or of its fourth of the SM's, that a pass asks of issue slots, pipes and L2."""
    demand: Counter[str] = Counter(issue=len(steps))
    for step in steps:
        demand["registers"] += step.reads
        demand[step.pipe] += step.service * (SCHEDULERS if step.pipe in OF_SM else 1)
        demand["shared"] += step.copied * SCHEDULERS
        demand["L2"] += step.transfer * SCHEDULERS
    return dict(demand)


def steps_of(path: Sequence[Instruction], gpu: Gpu, traffic: Mapping[Access, float]) -> list[Step]:
    """The instructions of a pass as the simulation takes them."""
    reads = read_clocks(path, gpu.registers_per_clock)
    steps = [replace(_step(i, gpu, traffic), reads=clocks) for i, clocks in zip(path, reads, strict=True)]
    return _with_copy_groups(path, steps)


def _step(instruction: Instruction, gpu: Gpu, traffic: Mapping[Access, float]) -> Step:
    pipe = "branch" if instruction.never else PIPE_OF.get(instruction.name, "alu")
    width = _lane_bytes(instruction)
    wavefronts, transfer, copied = width / 4, 0.0, 0.0
    if pipe == "shared":
        wavefronts = _wavefronts(instruction, width, traffic)
    elif pipe == "global":
        whole = 32 * width
        copying = instruction.name == "LDGSTS"
        access = "cp.async, from global" if copying else _ACCESSES.get(instruction.name, "")
        transfer = traffic.get((access, width), whole) / gpu.l2_bytes_per_clock
        copied = traffic.get(("cp.async, to shared", width), wavefronts) if copying else 0.0
    return Step(
        pipe=pipe,
        service=wavefronts if pipe in OF_SM else _service(instruction, pipe, gpu),
        latency=gpu.latency.get(pipe, 0),
        stall=instruction.stall,
        write_barrier=instruction.write_barrier,
        read_barrier=instruction.read_barrier,
        waits=instruction.waits,
        transfer=transfer,
        copied=copied,
    )


def _service(instruction: Instruction, pipe: str, gpu: Gpu) -> float:
    # m8n8k4 takes as long with fp16 accumulators, in half as many steps.
    halves = 2 if instruction.opcode.startswith("HMMA.884.F16") else 1
    return gpu.service[pipe] * halves


def _lane_bytes(instruction: Instruction) -> int:
    """Bytes of one lane, by the opcode's modifiers; of ldmatrix, of the row that a lane addresses."""
    modifiers = set(instruction.opcode.split("."))
    if instruction.name == "LDSM" or "128" in modifiers:
        return 16
    if "64" in modifiers:
        return 8
    return 2 if modifiers & {"U16", "S16"} else 1 if modifiers & {"U8", "S8"} else 4


def _wavefronts(instruction: Instruction, width: int, traffic: Mapping[Access, float]) -> float:
    if instruction.name == "SHFL":
        return 1
    if instruction.name == "LDSM":
        matrices = int(instruction.opcode.rpartition(".")[2])
        transposed = ".trans" if ".MT88" in instruction.opcode else ""
        return traffic.get((f"ldmatrix.x{matrices}{transposed}", 16), matrices)
    return traffic.get((_ACCESSES.get(instruction.name, ""), width), max(1, width / 4))


def _with_copy_groups(path: Sequence[Instruction], steps: list[Step]) -> list[Step]:
    """Barriers of cp.async: LDGDEPBAR names the one that counts the group's copies, DEPBAR waits for it.

    The last copy of the group gets the barrier, as the way to L2 keeps their order; DEPBAR waits for it whatever number
    of groups may be under way, which our kernels' is 0.
    """
    for place, instruction in enumerate(path):
        if instruction.name == "LDGDEPBAR":
            last = max((p for p in range(place) if path[p].name == "LDGSTS"), default=None)
            steps[place] = replace(steps[place], write_barrier=None)
            if last is not None:
                steps[last] = replace(steps[last], write_barrier=instruction.write_barrier)
        elif instruction.name == "DEPBAR":
            barrier = int(instruction.operands[2])  # "SB0, 0x0"
            steps[place] = replace(steps[place], waits=(*steps[place].waits, barrier))
    return steps


def _longest_wait(timing: Timing) -> str:
    return next(reason for reason in timing.waiting if reason != "issued")
