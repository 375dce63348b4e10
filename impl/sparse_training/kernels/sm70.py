"""The sm_70 kernels of block-sparse attention."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from impl.cuda.build import Kernel

BLOCKS = (32, 64, 128)
PADDED_DIMS = (64, 128)
_SHARED_BYTES_PER_SM = 96 * 1024


def parts(block: int) -> int:
    """Blocks of threads that share a list of a pattern of `block`."""
    return 1


@functools.cache
def kernel(what: str, block: int, padded_dim: int, bfloat16: bool = False) -> Kernel:
    """`what` is "forward", "backward_dq" or "backward_dkdv"; for blocks of `block` and head dims up to `padded_dim`."""
    if bfloat16:
        raise ValueError("the Volta kernels take float16")
    forward = what == "forward"
    warp_rows = 32 if block == 128 and (forward or padded_dim == 64) else 16
    block_n = 64 if forward and padded_dim == 64 and block > 32 else 32
    threads = block // warp_rows * 32
    if what == "backward_dkdv" and (block, padded_dim) in ((32, 128), (64, 128), (128, 64)):
        threads, block_n = 128, 16  # with 32 queries registers would spill; the source says why 128 at 32
    shared_bytes = ((1 if forward else 2) * block + 2 * block_n) * padded_dim * 2
    blocks_per_sm = min(256 // threads, _SHARED_BYTES_PER_SM // shared_bytes)
    return Kernel(
        name=f"block_sparse_{what}_sm70_b{block}_d{padded_dim}",
        file=Path(__file__).with_name(f"{what}_sm70.cu"),
        entry=f"block_sparse_{what}_sm70",
        arch="sm_70",
        macros=(
            *(("BLOCK", block), ("PADDED_DIM", padded_dim), ("ALIGNED", 1), ("WARP_ROWS", warp_rows)),
            *(("BLOCK_N", block_n), ("THREADS", threads), ("MIN_BLOCKS", blocks_per_sm)),
        ),
        threads=threads,
        dynamic_shared_bytes=shared_bytes,
        max_registers=255,
        min_blocks_per_sm=blocks_per_sm,
    )


ALL = tuple(
    kernel(*variant) for variant in itertools.product(("forward", "backward_dq", "backward_dkdv"), BLOCKS, PADDED_DIMS)
)
