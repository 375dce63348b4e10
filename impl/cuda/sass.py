"""Machine code of a cubin as instructions, read through nvdisasm, with the scheduling bits that it does not print.

From Volta on an instruction is 128 bits, and the compiler writes into bits 105 to 125 of each when the hardware may
go on (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826, section 2.1):
how many clocks to stall after it, which of six barriers its result or its operands' release will count down, and which
barriers it waits for itself.
"""

from __future__ import annotations

import bisect
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from impl.cuda.build import BuildError

_NO_BARRIER = 7
_LINE = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;?"
    r"\s*/\* 0x(?P<low>[0-9a-f]{16}) \*/\s*/\* 0x(?P<high>[0-9a-f]{16}) \*/",
    re.MULTILINE,
)
_LABEL = re.compile(r"^\s*(?P<label>\.L_\w+):", re.MULTILINE)
_TARGET = re.compile(r"`\((\.L_\w+)\)")


class DisassemblerMissing(BuildError):
    """There is no nvdisasm, or only one that no longer knows the architecture; the message says how to get one."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    `predicate` is as printed, without @, or empty. `target` is the address that a branch may go to. `stall` is in
    clocks; `write_barrier` counts down when the result is there, `read_barrier` when the operands have been read;
    `waits` are the barriers that must be down before it is issued.
    """

    address: int
    opcode: str
    operands: str
    predicate: str
    target: int | None
    stall: int
    write_barrier: int | None
    read_barrier: int | None
    waits: tuple[int, ...]

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def never(self) -> bool:
        """Whether its predicate is always false: it takes an issue slot and does nothing."""
        return self.predicate == "!PT"


def disassemble(code: bytes) -> list[Instruction]:
    """The instructions of a cubin with one kernel, in order of their addresses.

    Raises DisassemblerMissing where no nvdisasm reads it.
    """
    refusals = []
    for nvdisasm in _nvdisasms():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code)
            file.flush()
            run = subprocess.run([nvdisasm, "-c", "-hex", file.name], capture_output=True, text=True)
        if run.returncode == 0:
            return parse(run.stdout)
        refusals.append(f"{nvdisasm}: {run.stderr.strip().splitlines()[-1]}")
    found = "; ".join(refusals) or "none was found"
    raise DisassemblerMissing(
        f"the model needs nvdisasm of CUDA 12 ({found}): python requirements/nvdisasm.py, or set NVDISASM to its path"
    )


def _nvdisasms() -> list[str]:
    """Those there are: $NVDISASM, this Python's (requirements/nvdisasm.py), triton's, a toolkit's, the one on PATH."""
    triton = importlib.util.find_spec("triton")
    folders = [Path(sys.prefix) / "bin"]
    folders += [Path(triton.origin).parent / "backends/nvidia/bin"] if triton and triton.origin else []
    folders += [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    paths = [os.environ.get("NVDISASM"), *(folder / "nvdisasm" for folder in folders), shutil.which("nvdisasm")]
    return list(dict.fromkeys(str(path) for path in paths if path and os.access(path, os.X_OK)))


def parse(listing: str) -> list[Instruction]:
    """The instructions of what `nvdisasm -c -hex` prints for one kernel."""
    lines = list(_LINE.finditer(listing))
    starts = [line.start() for line in lines]
    labels = {}
    for label in _LABEL.finditer(listing):
        after = bisect.bisect(starts, label.start())
        if after < len(lines):
            labels[label["label"]] = int(lines[after]["address"], 16)
    return [_instruction(line, labels) for line in lines]


def _instruction(line: re.Match[str], labels: dict[str, int]) -> Instruction:
    control = int(line["high"], 16) >> 41
    write, read, waits = control >> 5 & 7, control >> 8 & 7, control >> 11 & 63
    target = _TARGET.search(line["operands"]) if line["opcode"].startswith("BRA") else None
    return Instruction(
        address=int(line["address"], 16),
        opcode=line["opcode"],
        operands=line["operands"],
        predicate=line["predicate"] or "",
        target=labels[target[1]] if target else None,
        stall=control & 15,
        write_barrier=None if write == _NO_BARRIER else write,
        read_barrier=None if read == _NO_BARRIER else read,
        waits=tuple(i for i in range(6) if waits >> i & 1),
    )
