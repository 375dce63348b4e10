"""The sm_80 kernels of block-sparse attention."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from impl.cuda.build import Kernel

BLOCKS = (32, 64, 128)
PADDED_DIMS = (32, 64, 128)
_ROWS = 32  # queries of a step of backward_dkdv


def parts(block: int) -> int:
    """Blocks of threads that share a list of a pattern of `block`."""
    return 1


@functools.cache
def kernel(what: str, block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """`what` is "forward", "backward_dq" or "backward_dkdv"; for blocks of `block` and head dims up to `padded_dim`.

    As many blocks per SM as 255 registers a thread and the shared memory of sm_80 allow.
    """
    threads, shared_bytes, macros = _SHAPES[what](block, padded_dim)
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


def _forward(block: int, padded_dim: int) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    block_n = min(block, 64 if padded_dim <= 64 else 32)
    return block, (block + 2 * block_n) * padded_dim * 2, (("BLOCK_N", block_n),)


def _backward_dq(block: int, padded_dim: int) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    keys = 16 if padded_dim > 64 else 32  # of a step
    return block, (2 * block + 4 * keys) * padded_dim * 2, ()


def _backward_dkdv(block: int, padded_dim: int) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    sharing = 2 if padded_dim == 128 or (block, padded_dim) == (32, 64) else 1  # warps that share keys
    elements = (2 * block + 4 * _ROWS) * padded_dim + (sharing - 1) * 2 * block * _ROWS
    return block * sharing, 2 * elements + 2 * _ROWS * 8, (("SHARING", sharing),)


# Threads, bytes of shared memory and macros.
_SHAPES = {"forward": _forward, "backward_dq": _backward_dq, "backward_dkdv": _backward_dkdv}
ALL = tuple(
    kernel(what, block, padded_dim, bfloat16)
    for what, block, padded_dim in itertools.product(_SHAPES, BLOCKS, PADDED_DIMS)
    for bfloat16 in ((False, True) if block == 64 else (False,))  # bfloat16 takes the registers that float16 takes
)
