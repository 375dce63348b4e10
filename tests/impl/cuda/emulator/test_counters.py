"""Counts of traffic and instructions on examples worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from impl.cuda.emulator import count

_LANES = torch.arange(32, dtype=torch.int32)

# element type, the index each lane accesses, wavefronts, those without conflicts, 32-byte sectors, those if adjacent
_ACCESSES = {
    "4 bytes, adjacent": ("int", _LANES, 1, 1, 4, 4),
    "4 bytes, all the same": ("int", _LANES * 0, 1, 1, 1, 4),
    "4 bytes, stride 2": ("int", _LANES * 2, 2, 1, 8, 4),
    "4 bytes, stride 3": ("int", _LANES * 3, 1, 1, 12, 4),
    "4 bytes, stride 32": ("int", _LANES * 32, 32, 1, 32, 4),
    "4 bytes, stride 33": ("int", _LANES * 33, 1, 1, 32, 4),
    "4 bytes, reversed": ("int", 31 - _LANES, 1, 1, 4, 4),
    "4 bytes, two words of one bank": ("int", _LANES % 2 * 32, 2, 1, 2, 4),
    "2 bytes, adjacent": ("short", _LANES, 1, 1, 2, 2),
    "2 bytes, stride 64": ("short", _LANES * 64, 32, 1, 32, 2),
    "4 bytes in two halves": ("__half2", _LANES, 1, 1, 4, 4),
    "8 bytes, adjacent": ("int2", _LANES, 2, 2, 8, 8),
    "8 bytes, stride 2": ("int2", _LANES * 2, 4, 2, 16, 8),
    "8 bytes, halves of the warp alike": ("int2", _LANES % 16, 2, 2, 4, 8),
    "16 bytes, adjacent": ("int4", _LANES, 4, 4, 16, 16),
    "16 bytes of floats": ("float4", _LANES, 4, 4, 16, 16),
    "16 bytes, stride 2": ("int4", _LANES * 2, 8, 4, 32, 16),
    "16 bytes, stride 8": ("int4", _LANES * 8, 32, 4, 32, 16),
    "16 bytes, stride 9": ("int4", _LANES * 9, 4, 4, 32, 16),
}


_BLOCKS = 3


@pytest.mark.parametrize("name", _ACCESSES)
def test_traffic(test_kernel, name):
    element, index, *expected = _ACCESSES[name]
    size = {"short": 2, "int": 4, "__half2": 4, "int2": 8, "int4": 16, "float4": 16}[element]
    kernel = test_kernel("traffic.cu", "traffic", 32, dynamic_shared_bytes=32 * 33 * 16, ELEMENT=element)
    source = torch.zeros(32 * 33 * 4, dtype=torch.int32)
    counts = count(kernel, (_BLOCKS, 1, 1), [index, source, torch.full((32,), -1, dtype=torch.int32)])
    load, store, copy = (
        next(c for c in counts if (c.instruction, c.line) == (instruction, _line_of(kernel, marker)))
        for instruction, marker in [
            ("ld.shared", "// shared"),
            ("st.shared", "// global to shared"),
            ("ld.global", "// global to shared"),
        ]
    )
    measured = (load.wavefronts, load.ideal_wavefronts, copy.sectors, copy.ideal_sectors)
    assert measured == tuple(_BLOCKS * number for number in expected)
    assert (store.wavefronts, store.ideal_wavefronts) == measured[:2]
    assert all(c.bytes == size and c.instructions == _BLOCKS for c in (load, store, copy))
    assert load.sectors == copy.wavefronts == 0


def test_instructions(test_kernel):
    """Two warps: 3 exponentials and half a warp's reciprocal, 5 shuffles each; 7 products by the first."""
    kernel = test_kernel("traffic.cu", "instructions", 64, ELEMENT="int")
    totals = Counter()
    for row in count(kernel, (1, 1, 1), [torch.zeros(64)]):
        totals[row.instruction] += row.instructions
    assert totals == {"mufu": 7, "shuffle": 10, "mma.m16n8k16": 7, "bar.sync": 2, "st.global": 2}


def test_lanes_that_leave_a_loop_early(test_kernel):
    """32 rounds, each one access of the lanes that are left, not 32 + 31 + ... single ones."""
    kernel = test_kernel("traffic.cu", "triangle", 32, ELEMENT="int")
    source = torch.zeros(32 * 32, dtype=torch.int32)
    (row,) = (c for c in count(kernel, (1, 1, 1), [source, source[:32].clone()]) if c.instruction == "ld.global")
    assert row.instructions == 32
    assert row.sectors == sum(4 - lane // 8 for lane in range(32))


def test_row_accesses_of_ldmatrix_are_counted(test_kernel):
    """Rows of 48 bytes: eight of them fill every bank once."""
    kernel = test_kernel("load_matrix.cu", "load", 32, LOAD="load_matrix_x4")
    arguments = [torch.zeros(256, dtype=torch.int16), torch.zeros(128, dtype=torch.int32)]
    (row,) = (c for c in count(kernel, (1, 1, 1), arguments) if c.instruction.startswith("ldmatrix"))
    assert (row.instruction, row.instructions, row.wavefronts, row.ideal_wavefronts) == ("ldmatrix.x4", 1, 4, 4)


def _line_of(kernel, marker):
    lines = kernel.file.read_text().splitlines()
    return f"{kernel.file.name}:{next(i for i, line in enumerate(lines, 1) if line.endswith(marker))}"
