"""Planning the bitmap product: its specialisations, what fits in shared memory, and how it is cut."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from impl.cuda.build import Kernel
from impl.flash_llm.formats.bitmap import BLOCK_COLS, BLOCK_ROWS, LANES, Bitmap
from impl.flash_llm.kernels.plan import Device, Plan, Problem, choose_split_k

_STAGES = 2
_LINE_BYTES = 4 * LANES
_BLOCK_OVERHEAD = 1024  # bytes of shared memory that the system takes from each block
_REGISTERS = 65536  # of an SM
_FILL_SEGMENTS = 1  # segments that a block waits for before the first one it multiplies
_NOMINAL_LINES = 27  # of the densest block, about 80 % zeros: what KERNELS and their reports show
_WARPS = (4, 8)


def _shared_bytes(tile_n: int, warps: int, stage_lines: int) -> int:
    return _STAGES * (2 * BLOCK_COLS * tile_n + warps * stage_lines * _LINE_BYTES)


def _spmm_kernel(tile_n: int, warps: int, max_registers: int) -> Kernel:
    return Kernel(
        name=f"flash_llm_bitmap_n{tile_n}_w{warps}",
        file=Path(__file__).parent / "bitmap_sm80.cu",
        entry="bitmap_spmm",
        arch="sm_80",
        macros=(("TILE_N", tile_n), ("WARPS", warps), ("MIN_BLOCKS_PER_SM", 1), ("STAGES", _STAGES), ("UNROLL", 1)),
        threads=32 * warps,
        dynamic_shared_bytes=_shared_bytes(tile_n, warps, _NOMINAL_LINES),
        max_registers=max_registers,
        min_blocks_per_sm=1,
    )


_MAX_REGISTERS = {8: 96, 16: 96, 32: 128, 64: 168}  # by the width of the tile
SPMM = {
    (tile_n, warps): _spmm_kernel(tile_n, warps, registers)
    for tile_n, registers in _MAX_REGISTERS.items()
    for warps in _WARPS
}


@functools.cache
def choose_plan(problem: Problem, device: Device, split_k: int | None = None) -> Plan:
    """The plan of a product on `device`.

    The narrowest tile that holds n, or the widest, of those whose stages fit in shared memory; of 4 or 8 warps
    the number that puts more on an SM, and when both put the same, 8, which read X half as often. `split_k`
    overrides the choice; it may be 1 to the number of 128-wide segments in k. Raises ValueError beyond that.
    """
    longest = problem.longest
    widths = [width for width in _MAX_REGISTERS if resident_blocks(width, min(_WARPS), longest, device)]
    tile_n = next((width for width in widths if width >= problem.n), max(widths))
    resident = {warps: resident_blocks(tile_n, warps, longest, device) for warps in _WARPS}
    useful = [warps for warps in _WARPS if warps == min(_WARPS) or problem.m > BLOCK_ROWS * min(_WARPS)]
    warps = max(useful, key=lambda warps: (warps * resident[warps], warps))
    kernel = dataclasses.replace(SPMM[tile_n, warps], dynamic_shared_bytes=_shared_bytes(tile_n, warps, longest))
    tile = (BLOCK_ROWS * warps, tile_n)
    segments = Bitmap.grid(problem.m, problem.k)[1]
    segment_bytes = problem.nbytes // (-(-problem.m // tile[0]) * segments)
    slots = device.sm_count * resident[warps]
    parts = choose_split_k(problem, tile, segments, segment_bytes, _FILL_SEGMENTS, slots, split_k)
    return Plan(kernel, *tile, parts, extra=(np.int32(longest),))


def resident_blocks(tile_n: int, warps: int, stage_lines: int, device: Device) -> int:
    """Blocks on one SM at once, by shared memory and registers; 0 when not even one fits."""
    shared_bytes = _shared_bytes(tile_n, warps, stage_lines)
    if shared_bytes > device.shared_bytes_per_block:
        return 0
    by_shared = device.shared_bytes_per_sm // (shared_bytes + _BLOCK_OVERHEAD)
    return min(by_shared, _REGISTERS // (_MAX_REGISTERS[tile_n] * 32 * warps))
