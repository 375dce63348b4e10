"""The main loop of a kernel, and the ways to it, through it and from it that the model times.

The main loop is the innermost loop that holds most of the kernel's Tensor-Core instructions. Where it branches, the way
is taken that has the most of them; then the one with least of loops that have none, which are for what is left over or
not aligned; then with most accesses to memory, so not past the loads for the next pass; then with fewest other
instructions: past masks and rescaling. A loop within it that has Tensor-Core instructions is passed as often as the
work of a pass needs; one without, where there is no way around it, once. So is any before and after the main loop.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from impl.cuda.build import BuildError
from impl.cuda.sass import Instruction

TENSOR = ("HMMA",)
_MEMORY = ("LDG", "LDGSTS", "LDS", "LDSM", "STS", "STG", "ATOM", "RED")
Loop = tuple[int, int]  # addresses of the first instruction, and of the branch back to it


def tensor_flops(instruction: Instruction) -> int:
    """Floating-point operations of one warp instruction of the Tensor Cores, 0 for others.

    An m8n8k4 for each of four quad-pairs takes four steps with fp32 accumulators and two with fp16.
    """
    if instruction.name not in TENSOR:
        return 0
    kind = instruction.opcode.split(".")
    if kind[1] == "884":
        return 4 * 2 * 8 * 8 * 4 // (4 if kind[2] == "F32" else 2)
    return {"16816": 2 * 16 * 8 * 16, "1688": 2 * 16 * 8 * 8}[kind[1]]


def main_path(instructions: Sequence[Instruction], flops: int) -> list[Instruction]:
    """The instructions of one pass through the main loop, in order.

    flops: what a warp's Tensor-Core instructions do in a pass. Raises BuildError when no whole number of passes through
    the inner loops gives that.
    """
    loops, outer = _loops(instructions), _main_loop(instructions)
    within = [loop for loop in loops if outer[0] <= loop[0] and loop[1] <= outer[1] and loop != outer]
    inner = [loop for loop in within if _tensor_count(_body(instructions, loop))]
    left_over = {i.address for loop in within if loop not in inner for i in _body(instructions, loop)}
    path = _best_path(_body(instructions, outer), left_over)
    done = sum(map(tensor_flops, path))
    for loop in inner:
        again = [i for i in path if loop[0] <= i.address <= loop[1]]
        times, rest = divmod(flops - done, sum(map(tensor_flops, again)) or 1)
        if times > 0 and rest == 0:
            place = path.index(again[-1]) + 1
            path[place:place] = again * times
            done = flops
    if done != flops:
        raise BuildError(f"the main loop does {done} tensor FLOPs a pass and warp, not {flops}")
    return path


def ways_to_and_from(instructions: Sequence[Instruction]) -> tuple[list[Instruction], list[Instruction]]:
    """What a warp does before the main loop, and from there to its end."""
    first, last = _main_loop(instructions)
    before = [i for i in instructions if i.address < first]
    after = [i for i in instructions if i.address > last]
    while after and not _exits(after[-1]):  # padding
        after.pop()
    left_over = {i.address for loop in _loops(before) for i in _body(before, loop)}
    return _best_path(before, left_over), _best_path(after, set())


def _main_loop(instructions: Sequence[Instruction]) -> Loop:
    loops = _loops(instructions)
    if not loops:
        raise BuildError("the kernel has no loop")
    return max(loops, key=lambda loop: (_tensor_count(_body(instructions, loop)), loop[0] - loop[1]))


def _exits(instruction: Instruction) -> bool:
    return instruction.name == "EXIT" and not instruction.predicate


def _body(instructions: Sequence[Instruction], loop: Loop) -> list[Instruction]:
    return [i for i in instructions if loop[0] <= i.address <= loop[1]]


def _tensor_count(instructions: Sequence[Instruction]) -> int:
    return sum(i.name in TENSOR for i in instructions)


def _loops(instructions: Sequence[Instruction]) -> list[Loop]:
    return [(i.target, i.address) for i in instructions if i.target is not None and i.target <= i.address]


def _best_path(body: Sequence[Instruction], left_over: Set[int]) -> list[Instruction]:
    """From the first to the last instruction, or another exit, along branches forward; found from the end."""
    best: dict[int, tuple[tuple[int, ...], int | None]] = {}  # address: worth from here on, where to go
    places = {instruction.address: place for place, instruction in enumerate(body)}
    for place in range(len(body) - 1, -1, -1):
        i = body[place]
        is_last = i is body[-1] or _exits(i)
        nexts = [] if is_last else [place + 1]
        if i.target is not None and not is_last and i.target > i.address:
            if not i.predicate and "," not in i.operands:
                nexts = []
            if i.target in places:
                nexts.append(places[i.target])
        options = [(best[p][0], p) for p in nexts if p in best]
        if not options and not is_last:
            continue
        ahead, go = max(options, key=lambda option: option[0]) if options else ((0, 0, 0, 0), None)
        own = (i.name in TENSOR, -(i.address in left_over), i.name in _MEMORY and not i.never, -1)
        best[place] = (tuple(map(sum, zip(own, ahead, strict=True))), go)
    path, place = [], 0 if body else None
    while place is not None:
        path.append(body[place])
        place = best[place][1]
    return path
