"""How long the register file takes to read an instruction's operands.

A scheduler's registers lie in two banks, even and odd. From Ampere on a bank gives a warp one register a clock (Huerta
et al., arXiv 2503.20481), on Volta two (Jia et al., arXiv 1804.06826, section 3.5). An operand marked `.reuse` stays in
the operand cache for the next instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from impl.cuda.sass import Instruction

_REGISTER = re.compile(r"\bR(\d+)(?:\.64)?(\.reuse)?")
_WIDE = re.compile(r"\bR\d+\.64")
_NO_RESULT = ("STS", "STG", "RED", "LDGSTS", "BAR", "BRA")
_TWO_RESULTS = ("ISETP", "FSETP", "PLOP3", "SHFL")
_HMMA_REGISTERS = {"884": (2, 2, 2), "16816": (4, 2, 4), "1688": (2, 1, 4)}  # of A, B, C; of a step of m8n8k4


def read_clocks(path: Iterable[Instruction], registers_per_clock: int) -> Iterator[float]:
    """For each instruction of a pass, the clocks that the busier bank needs, at so many registers a clock."""
    cached: set[tuple[int, int]] = set()
    for instruction in path:
        banks, kept = [0, 0], set()
        for slot, operand in enumerate(_sources(instruction)):
            for found in _REGISTER.finditer(operand):
                first = int(found[1])
                if found[2]:
                    kept.add((slot, first))
                if (slot, first) not in cached:
                    for register in range(first, first + _count(instruction, slot, operand)):
                        banks[register % 2] += 1
        cached = kept
        yield max(banks) / registers_per_clock


def _sources(instruction: Instruction) -> list[str]:
    results = 0 if instruction.name in _NO_RESULT else 2 if instruction.name in _TWO_RESULTS else 1
    return instruction.operands.split(", ")[results:]


def _count(instruction: Instruction, slot: int, operand: str) -> int:
    """Registers that an operand is wide."""
    if instruction.name == "HMMA":
        return _HMMA_REGISTERS[instruction.opcode.split(".")[1]][slot]
    if instruction.name in ("STS", "STG") and slot == 1:
        return 4 if ".128" in instruction.opcode else 2 if ".64" in instruction.opcode else 1
    return 2 if _WIDE.search(operand) else 1
