"""The sm_70 forward kernels. What they do, and their registers and instructions: VOLTA.md."""

from __future__ import annotations

from pathlib import Path

from impl.cuda.build import Kernel

BLOCK_M = 128
_BLOCK_N = {64: 64, 128: 32}  # by padded head dim: two blocks of shared memory and registers per SM


def forward_kernel(padded_dim: int, aligned: bool, accumulate_fp16: bool) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128); its grid is (ceil(seqlen_q / BLOCK_M), heads, batch).

    aligned: all rows start at multiples of 16 bytes and head_dim is a multiple of 8.
    accumulate_fp16: both products accumulate in fp16, p v over one key tile at a time.
    """
    block_n = _BLOCK_N[padded_dim]
    accumulator = "fp16" if accumulate_fp16 else "fp32"
    return Kernel(
        name=f"spark_attention_forward_sm70_d{padded_dim}_{accumulator}{'' if aligned else '_unaligned'}",
        file=Path(__file__).with_name("forward_sm70.cu"),
        entry="spark_attention_forward_sm70",
        arch="sm_70",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("BLOCK_N", block_n),
            ("ALIGNED", int(aligned)),
            ("ACCUMULATE_FP16", int(accumulate_fp16)),
            ("MIN_BLOCKS", 2),
        ),
        threads=128,
        dynamic_shared_bytes=(BLOCK_M + 2 * block_n) * padded_dim * 2,
        max_registers=255,
        min_blocks_per_sm=2,
    )


FORWARD = tuple(
    forward_kernel(padded_dim, aligned, accumulate_fp16)
    for padded_dim in _BLOCK_N
    for aligned in (True, False)
    for accumulate_fp16 in (False, True)
)
