"""The sm_80 kernels of block-sparse attention."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from impl.cuda.build import Kernel

BLOCKS = (32, 64, 128)
PADDED_DIMS = (32, 64, 128)
_ROWS = 32  # queries of a step of the second backward kernel


@functools.cache
def forward_kernel(block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """The forward for blocks of `block` and head dims up to `padded_dim`; one block of threads per query block."""
    block_n = min(block, 64 if padded_dim <= 64 else 32)
    return _kernel(
        "forward",
        (block, padded_dim, bfloat16),
        threads=block,
        shared_bytes=(block + 2 * block_n) * padded_dim * 2,
        macros=(("BLOCK_N", block_n),),
    )


@functools.cache
def dq_kernel(block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """The first kernel of the backward, one block of threads per query block."""
    keys = 16 if padded_dim > 64 else 32  # of a step
    shared_bytes = (2 * block + 4 * keys) * padded_dim * 2
    return _kernel("backward_dq", (block, padded_dim, bfloat16), threads=block, shared_bytes=shared_bytes)


@functools.cache
def dkdv_kernel(block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """The second kernel of the backward, one block of threads per key block."""
    sharing = 2 if padded_dim == 128 or (block, padded_dim) == (32, 64) else 1  # warps that share keys
    elements = (2 * block + 4 * _ROWS) * padded_dim + (sharing - 1) * 2 * block * _ROWS
    return _kernel(
        "backward_dkdv",
        (block, padded_dim, bfloat16),
        threads=block * sharing,
        shared_bytes=2 * elements + 2 * _ROWS * 8,
        macros=(("SHARING", sharing),),
    )


def _kernel(
    what: str,
    variant: tuple[int, int, bool],
    *,
    threads: int,
    shared_bytes: int,
    macros: tuple[tuple[str, int], ...] = (),
) -> Kernel:
    """As many blocks per SM as 255 registers a thread and the shared memory of sm_80 allow."""
    block, padded_dim, bfloat16 = variant
    blocks_per_sm = min(256 // threads, 164 * 1024 // (shared_bytes + 1024))
    return Kernel(
        name=f"block_sparse_{what}_sm80_b{block}_d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name(f"{what}_sm80.cu"),
        entry=f"block_sparse_{what}_sm80",
        arch="sm_80",
        macros=(
            *(("BLOCK", block), ("PADDED_DIM", padded_dim), ("ALIGNED", 1), ("BFLOAT16", int(bfloat16))),
            *(*macros, ("MIN_BLOCKS", blocks_per_sm)),
        ),
        threads=threads,
        dynamic_shared_bytes=shared_bytes,
        max_registers=255,
        min_blocks_per_sm=blocks_per_sm,
    )


ALL = tuple(
    make(*variant)
    for make in (forward_kernel, dq_kernel, dkdv_kernel)
    for variant in itertools.product(BLOCKS, PADDED_DIMS, (False, True))
)
