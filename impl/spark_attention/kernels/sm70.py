"""The sm_70 forward kernels. What they do, and their registers and instructions: VOLTA.md."""

from __future__ import annotations

from pathlib import Path

from impl.cuda.build import Kernel
from impl.spark_attention.kernels.extras import PLAIN, REPORTED, Features

BLOCK_M = 128
_SHARED_BYTES_PER_SM = 96 * 1024
# (padded head dim, fp16 accumulators): BLOCK_N, blocks per SM, registers. Fewer keys for fp16: their sums err less.
_TILES = {(64, False): (64, 2, 255), (64, True): (32, 3, 168), (128, False): (32, 2, 255), (128, True): (32, 2, 255)}


def forward_kernel(
    padded_dim: int,
    aligned: bool,
    accumulate_fp16: bool,
    features: Features = PLAIN,
    *,
    p_through_shared: bool = False,
) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128); its grid is (ceil(seqlen_q / BLOCK_M), heads, batch).

    aligned: all rows start at multiples of 16 bytes and head_dim is a multiple of 8.
    accumulate_fp16: both products accumulate in fp16, p v over one key tile at a time.
    p_through_shared: probabilities travel through shared memory, not by shuffles; for comparison, not in FORWARD.
    """
    block_n, blocks_per_sm, max_registers = _TILES[padded_dim, accumulate_fp16]
    if features:  # their registers take the place of scores
        block_n = 32 if padded_dim == 64 else 16
    shared_bytes = ((BLOCK_M + 2 * block_n) * padded_dim + p_through_shared * BLOCK_M * block_n) * 2
    blocks_per_sm = min(blocks_per_sm, _SHARED_BYTES_PER_SM // shared_bytes)
    flags = {"fp16acc": accumulate_fp16, "unaligned": not aligned, "p_through_shared": p_through_shared}
    suffix = "".join(f"_{flag}" for flag, is_set in flags.items() if is_set)
    return Kernel(
        name=f"spark_attention_forward_sm70_d{padded_dim}{suffix}{features.suffix}",
        file=Path(__file__).with_name("forward_sm70.cu"),
        entry="spark_attention_forward_sm70",
        arch="sm_70",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("BLOCK_N", block_n),
            ("ALIGNED", int(aligned)),
            ("ACCUMULATE_FP16", int(accumulate_fp16)),
            ("P_THROUGH_SHARED", int(p_through_shared)),
            *features.macros,
            ("MIN_BLOCKS", blocks_per_sm),
        ),
        threads=128,
        dynamic_shared_bytes=shared_bytes,
        max_registers=max_registers,
        min_blocks_per_sm=blocks_per_sm,
    )


FORWARD = tuple(
    forward_kernel(padded_dim, aligned, accumulate_fp16)
    for padded_dim, accumulate_fp16 in _TILES
    for aligned in (True, False)
)


def backward_kernel(gradient: str, padded_dim: int, aligned: bool, features: Features = PLAIN) -> Kernel:
    """One of the two kernels of the backward for head dims up to `padded_dim` (64 or 128).

    gradient: "dq", which also writes delta, in a grid of (query tiles, heads, batch); or "dkdv", which reads it, in one
    of (key tiles, key-value heads, batch). Tiles have `backward_rows` rows. aligned: as in the forward.
    """
    rows = backward_rows(padded_dim, features)
    block_n = 16 if features and gradient == "dkdv" and padded_dim == 128 else 32
    suffix = ("" if aligned else "_unaligned") + features.suffix
    return Kernel(
        name=f"spark_attention_backward_{gradient}_sm70_d{padded_dim}{suffix}",
        file=Path(__file__).with_name(f"backward_{gradient}_sm70.cu"),
        entry=f"spark_attention_backward_{gradient}_sm70",
        arch="sm_70",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("WARP_ROWS", rows // 4),
            ("BLOCK_N", block_n),
            ("ALIGNED", int(aligned)),
            *features.macros,
            ("MIN_BLOCKS", 2),
        ),
        threads=128,
        dynamic_shared_bytes=2 * (rows + block_n) * padded_dim * 2,
        max_registers=255,
        min_blocks_per_sm=2,
    )


def backward_rows(padded_dim: int, features: Features = PLAIN) -> int:
    """Rows of a block of the backward: queries for dq, keys for dk and dv."""
    return 64 if features or padded_dim == 128 else 128


BACKWARD = tuple(
    backward_kernel(gradient, padded_dim, aligned)
    for gradient in ("dq", "dkdv")
    for padded_dim in (64, 128)
    for aligned in (True, False)
)

WITH_EXTRAS = (
    *(forward_kernel(padded_dim, True, False, REPORTED) for padded_dim in (64, 128)),
    *(backward_kernel(name, padded_dim, True, REPORTED) for name in ("dq", "dkdv") for padded_dim in (64, 128)),
)
