"""Clocks of the register file, counted by hand."""

from __future__ import annotations

import pytest

from impl.cuda.model.registers import read_clocks


@pytest.mark.parametrize(
    ("opcode", "operands", "clocks"),
    [
        ("FFMA", "R0, R2, R4, R6", 3),  # all even
        ("FFMA", "R0, R2, R3, R5", 2),
        ("FMUL", "R0, R2, R3", 1),
        ("FADD", "R0, R2, -RZ", 1),
        ("MUFU.EX2", "R2, R4", 1),
        ("IMAD.MOV.U32", "R4, RZ, RZ, c[0x0][0x200]", 0),
        ("ISETP.GE.AND", "P0, PT, R2, R4, PT", 2),
        ("HMMA.16816.F32", "R8, R4, R12, R8", 5),  # 4 + 2 + 4 registers, half of them even
        ("HMMA.884.F32.F32.STEP0", "R8, R4.ROW, R6.COL, R8", 3),
        ("HMMA.884.F32.F32.STEP0", "R8, R4.ROW, R6.COL, RZ", 2),
        ("STS.128", "[R3], R4", 3),  # R3 and R4 to R7
        ("LDS.128", "R4, [R3+UR5]", 1),
        ("LDG.E.128", "R4, desc[UR8][R2.64]", 1),
    ],
)
def test_one_instruction(instruction, opcode, operands, clocks):
    made = instruction(opcode, operands)
    assert list(read_clocks([made], 1)) == [clocks]
    assert list(read_clocks([made], 2)) == [clocks / 2]


def test_an_operand_kept_for_the_next_instruction_is_not_read_again(instruction):
    first = instruction("FMUL", "R0, R2.reuse, R4")
    path = [first, instruction("FMUL", "R1, R2, R6"), instruction("FMUL", "R1, R2, R6")]
    assert list(read_clocks(path, 1)) == [2, 1, 2]


def test_an_operand_is_kept_for_its_own_place_only(instruction):
    path = [instruction("FMUL", "R0, R2.reuse, R4"), instruction("FMUL", "R1, R4, R2")]
    assert list(read_clocks(path, 1)) == [2, 2]
