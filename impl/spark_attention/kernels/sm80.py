"""The sm_80 forward kernels."""

from __future__ import annotations

from pathlib import Path

from impl.cuda.build import Kernel

BLOCK_M = 128


def forward_kernel(padded_dim: int, aligned: bool, bfloat16: bool) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128); its grid is (ceil(seqlen_q / BLOCK_M), heads, batch).

    aligned: all rows start at multiples of 16 bytes and head_dim is a multiple of 8. bfloat16: else float16.
    """
    block_n = 64 if aligned and padded_dim == 64 else 32  # the head of the source says why
    element = "bf16" if bfloat16 else "fp16"
    return Kernel(
        name=f"spark_attention_forward_sm80_d{padded_dim}_{element}{'' if aligned else '_unaligned'}",
        file=Path(__file__).with_name("forward_sm80.cu"),
        entry="spark_attention_forward_sm80",
        arch="sm_80",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("BLOCK_N", block_n),
            ("ALIGNED", int(aligned)),
            ("BFLOAT16", int(bfloat16)),
            ("MIN_BLOCKS", 2),
        ),
        threads=128,
        dynamic_shared_bytes=(BLOCK_M + 2 * block_n) * padded_dim * 2,
        max_registers=255,
        min_blocks_per_sm=2,
    )


FORWARD = tuple(
    forward_kernel(padded_dim, aligned, bfloat16)
    for padded_dim in (64, 128)
    for aligned in (True, False)
    for bfloat16 in (False, True)
)
