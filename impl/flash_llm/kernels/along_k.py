"""Planning the sm_80 products by formats in warps' blocks: what fits in shared memory, and how they are cut."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from impl.flash_llm.kernels.plan import Device, Plan, Problem, choose_split_k
from impl.flash_llm.kernels.warp_blocks import (
    BITMAP,
    BLOCK_OVERHEAD,
    BLOCK_ROWS,
    REGISTERS,
    TWO_OF_FOUR,
    WarpBlocks,
)

_STAGES = 2
_FILL_SEGMENTS = 1  # segments that a block waits for before the first one it multiplies
_WARPS = {BITMAP: (4, 8), TWO_OF_FOUR: (2, 4, 8)}  # of a block
_MAX_REGISTERS = {  # by format and the width of the tile
    BITMAP: {8: 96, 16: 96, 32: 128, 64: 168},
    TWO_OF_FOUR: {8: 96, 16: 104, 32: 128, 64: 192},
}


def _shared_bytes(blocks: WarpBlocks, tile_n: int, warps: int, stage_pieces: int) -> int:
    return _STAGES * (2 * blocks.cols * tile_n + warps * stage_pieces * blocks.piece_bytes)


SPMM = {
    (blocks, tile_n, warps): blocks.kernel(
        "sm_80", tile_n, warps, _shared_bytes(blocks, tile_n, warps, blocks.nominal_pieces), registers,
        STAGES=_STAGES, **macros,
    )
    for blocks, macros in ((BITMAP, {"UNROLL": 1}), (TWO_OF_FOUR, {}))
    for tile_n, registers in _MAX_REGISTERS[blocks].items()
    for warps in _WARPS[blocks]
}  # fmt: skip


@functools.cache
def choose_plan(blocks: WarpBlocks, problem: Problem, device: Device, split_k: int | None = None) -> Plan:
    """The plan of a product on `device`.

    The narrowest tile that holds n, or the widest, of those whose stages fit in shared memory; of the numbers of warps
    the one that puts most on an SM, and when several put the same, the largest, which reads X least often. `split_k`
    overrides the choice; it may be 1 to the number of blocks of W along k. Raises ValueError beyond that.
    """
    longest, fewest = problem.longest, min(_WARPS[blocks])
    widths = [width for width in _MAX_REGISTERS[blocks] if resident_blocks(blocks, width, fewest, longest, device)]
    tile_n = next((width for width in widths if width >= problem.n), max(widths))
    resident = {warps: resident_blocks(blocks, tile_n, warps, longest, device) for warps in _WARPS[blocks]}
    useful = [warps for warps in _WARPS[blocks] if warps == fewest or problem.m > BLOCK_ROWS * warps // 2]
    warps = max(useful, key=lambda warps: (warps * resident[warps], warps))
    shared_bytes = _shared_bytes(blocks, tile_n, warps, longest)
    kernel = dataclasses.replace(SPMM[blocks, tile_n, warps], dynamic_shared_bytes=shared_bytes)
    tile = (BLOCK_ROWS * warps, tile_n)
    segments = -(-problem.k // blocks.cols)
    segment_bytes = problem.nbytes // (-(-problem.m // tile[0]) * segments)
    slots = device.sm_count * resident[warps]
    parts = choose_split_k(problem, tile, segments, segment_bytes, _FILL_SEGMENTS, slots, split_k)
    return Plan(kernel, *tile, parts, extra=(np.int32(longest),))


def resident_blocks(blocks: WarpBlocks, tile_n: int, warps: int, stage_pieces: int, device: Device) -> int:
    """Blocks on one SM at once, by shared memory and registers; 0 when not even one fits."""
    shared_bytes = _shared_bytes(blocks, tile_n, warps, stage_pieces)
    if shared_bytes > device.shared_bytes_per_block:
        return 0
    by_shared = device.shared_bytes_per_sm // (shared_bytes + BLOCK_OVERHEAD)
    return min(by_shared, REGISTERS // (_MAX_REGISTERS[blocks][tile_n] * 32 * warps))
