"""Instructions made by hand, and a planted kernel's, for the tests of the throughput model."""

from __future__ import annotations

from pathlib import Path

import pytest

from impl.cuda.build import Kernel, build
from impl.cuda.sass import DisassemblerMissing, Instruction, disassemble


@pytest.fixture
def instruction():
    """instruction("LDS.128", ...): one with the fields given, others empty."""

    def make(opcode, operands="", *, address=0, predicate="", target=None, stall=1, write=None, read=None, waits=()):
        return Instruction(address, opcode, operands, predicate, target, stall, write, read, waits)

    return make


@pytest.fixture
def planted():
    """planted(products): the kernel of kernels/planted.cu."""

    def make(products):
        file = Path(__file__).parent / "kernels" / "planted.cu"
        macros = (("PRODUCTS", products),)
        return Kernel(f"planted_{products}", file, "planted", "sm_70", macros, 128, 0, 255, 1)

    return make


@pytest.fixture
def instructions_of():
    """The machine code of a kernel for sm_70; skips where there is no nvdisasm."""

    def read(kernel):
        try:
            return disassemble(build(kernel, "sm_70").code)
        except DisassemblerMissing as error:
            pytest.skip(str(error))

    return read
