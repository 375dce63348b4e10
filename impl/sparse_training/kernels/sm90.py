"""The sm_90a kernels of block-sparse attention."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from impl.cuda.build import Kernel

BLOCKS = (64, 128)
PADDED_DIMS = (64, 128)
TILE_ROWS = 64
# Tiles on their way, by padded head dim: as many as leave blocks_per_sm as it is.
_STAGES = {"forward": {64: 2, 128: 2}, "backward_dq": {64: 2, 128: 2}, "backward_dkdv": {64: 3, 128: 2}}
_THREADS = 128
_REGISTERS_PER_SM = 65536
_BARRIER_BYTES = 64
# By padded head dim: registers of a thread, of which blocks per SM follow.
_REGISTERS = {
    "forward": {64: 128, 128: 168},
    "backward_dq": {64: 168, 128: 255},
    "backward_dkdv": {64: 168, 128: 255},
}


def parts(block: int) -> int:
    """Blocks of threads that share a list of a pattern of `block`."""
    return block // TILE_ROWS


@functools.cache
def kernel(what: str, block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """`what` is "forward", "backward_dq" or "backward_dkdv"; for blocks of `block` and head dims up to `padded_dim`."""
    stages = _STAGES[what][padded_dim]
    tiles = 2 * stages + {"forward": 1, "backward_dq": 3, "backward_dkdv": 2}[what]
    statistics = stages * TILE_ROWS * 8 if what == "backward_dkdv" else 0
    shared_bytes = tiles * TILE_ROWS * padded_dim * 2 + statistics + _BARRIER_BYTES
    by_registers = _REGISTERS_PER_SM // _REGISTERS[what][padded_dim] // _THREADS
    blocks_per_sm = min(by_registers, 228 * 1024 // (shared_bytes + 1024))
    return Kernel(
        name=f"block_sparse_{what}_sm90a_b{block}_d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name(f"{what}_sm90a.cu"),
        entry=f"block_sparse_{what}_sm90a",
        arch="sm_90a",
        macros=(
            *(("BLOCK", block), ("PADDED_DIM", padded_dim), ("BLOCK_N", TILE_ROWS), ("BFLOAT16", int(bfloat16))),
            *(("STAGES", stages), ("MIN_BLOCKS", blocks_per_sm)),
        ),
        threads=_THREADS,
        dynamic_shared_bytes=shared_bytes,
        max_registers=min(255, _REGISTERS_PER_SM // _THREADS // blocks_per_sm),
        min_blocks_per_sm=blocks_per_sm,
    )


ALL = tuple(
    kernel(what, block, padded_dim, bfloat16)
    for what, block, padded_dim in itertools.product(_REGISTERS, BLOCKS, PADDED_DIMS)
    for bfloat16 in ((False, True) if block == 64 else (False,))  # bfloat16 takes the registers that float16 takes
)
