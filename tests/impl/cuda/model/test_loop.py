"""The main loop of a kernel and the way through it."""

from __future__ import annotations

from collections import Counter

import pytest

from impl.cuda.build import BuildError
from impl.cuda.model.loop import main_path, tensor_flops, ways_to_and_from

M8N8K4 = 4 * 2 * 8 * 8 * 4  # FLOPs of a warp instruction: four quad-pairs
HMMA = "HMMA.16816.F32"
FLOPS = 2 * 16 * 8 * 16


@pytest.mark.parametrize("products", [1, 3])
def test_counts_of_a_planted_kernel(planted, instructions_of, products):
    path = main_path(instructions_of(planted(products)), products * M8N8K4)
    names = Counter(i.name for i in path)
    assert names["HMMA"] == products * 4, "m8n8k4 with fp32 accumulators is four steps"
    assert (names["MUFU"], names["LDS"], names["STS"], names["BAR"]) == (4, 1, 1, 2)
    assert names["FMUL"] == 0, "the way that is seldom taken"
    assert path[-1].target == path[0].address


def test_a_loop_that_does_other_work_is_an_error(planted, instructions_of):
    with pytest.raises(BuildError, match=f"does {2 * M8N8K4} tensor FLOPs a pass and warp, not {3 * M8N8K4}"):
        main_path(instructions_of(planted(2)), 3 * M8N8K4)


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("HMMA.884.F32.F32.STEP3", M8N8K4 / 4),
        ("HMMA.884.F16.F16.STEP1", M8N8K4 / 2),
        (HMMA, FLOPS),
        ("HMMA.1688.F32", FLOPS / 2),
        ("FFMA", 0),
    ],
)
def test_work_of_an_instruction(instruction, opcode, flops):
    assert tensor_flops(instruction(opcode)) == flops


def listing(instruction, *lines):
    """(opcode, operands, target line or None[, predicate]), 16 bytes each."""
    return [
        instruction(opcode, operands, address=16 * n, target=None if target is None else 16 * target, predicate=p)
        for n, (opcode, operands, target, p) in enumerate((*line, "")[:4] for line in lines)
    ]


def test_a_branch_goes_where_memory_is_not_where_it_is_short(instruction):
    body = listing(
        instruction,
        ("MOV", "", None),
        (HMMA, "", None),  # 1: the loop's first
        ("BRA", "P0, `(.L_a)", 5),  # past the loads for the next pass
        ("LDG", "", None),
        ("IADD3", "", None),
        ("BRA", "P1, `(.L_b)", 8),  # past a rescaling
        ("FMUL", "", None),
        ("FMUL", "", None),
        (HMMA, "", None),
        ("BRA", "P2, `(.L_c)", 1),
        ("STG", "", None),
    )
    path = main_path(body, 2 * FLOPS)
    assert [i.name for i in path] == ["HMMA", "BRA", "LDG", "IADD3", "BRA", "HMMA", "BRA"]


def test_an_inner_loop_is_passed_as_often_as_the_work_needs(instruction):
    body = listing(
        instruction,
        ("LDS", "", None),
        (HMMA, "", None),  # 1: the inner loop
        ("BRA", "P0, `(.L_inner)", 1),
        (HMMA, "", None),
        ("BRA", "P1, `(.L_outer)", 0),
    )
    assert [i.name for i in main_path(body, 4 * FLOPS)] == ["LDS", *["HMMA", "BRA"] * 3, "HMMA", "BRA"]
    with pytest.raises(BuildError, match="tensor FLOPs"):
        main_path(body, FLOPS // 2)


def test_a_loop_for_what_is_left_over_is_gone_around(instruction):
    body = listing(
        instruction,
        (HMMA, "", None),  # 0: the main loop
        ("BRA", "P0, `(.L_aligned)", 5),
        ("LDG", "", None),  # 2: element by element
        ("STS", "", None),
        ("BRA", "P1, `(.L_left)", 2),
        ("LDGSTS", "", None),
        ("BRA", "P2, `(.L_main)", 0),
    )
    assert [i.name for i in main_path(body, FLOPS)] == ["HMMA", "BRA", "LDGSTS", "BRA"]


def test_ways_to_the_main_loop_and_from_it(instruction):
    body = listing(
        instruction,
        ("S2R", "", None),
        ("BRA", "P0, `(.L_no_keys)", 7),  # past the loop
        ("LDG", "", None),
        ("BRA", "P1, `(.L_copy)", 2),  # copies by a loop of their own
        (HMMA, "", None),  # 4: the main loop
        ("BRA", "P2, `(.L_main)", 4),
        ("SHFL", "", None),
        ("EXIT", "", None, "P3"),
        ("STG", "", None),
        ("EXIT", "", None),
        ("BRA", "`(.L_padding)", 10),
    )
    before, after = ways_to_and_from(body)
    assert [i.name for i in before] == ["S2R", "BRA", "LDG", "BRA"]
    assert [i.name for i in after] == ["SHFL", "EXIT", "STG", "EXIT"]


def test_no_loop_is_an_error(instruction):
    with pytest.raises(BuildError, match="no loop"):
        main_path([instruction(HMMA)], FLOPS)
