"""The sm_80 kernels, forward and backward."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from impl.cuda.build import Kernel
from impl.spark_attention.kernels.extras import PLAIN, REPORTED, Features

BLOCK_M = 128
BACKWARD_ROWS, BACKWARD_KEYS = 64, 128


def forward_kernel(padded_dim: int, aligned: bool, bfloat16: bool, features: Features = PLAIN) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128); its grid is (ceil(seqlen_q / BLOCK_M), heads, batch).

    aligned: all rows start at multiples of 16 bytes and head_dim is a multiple of 8. bfloat16: else float16.
    """
    block_n = 64 if aligned and padded_dim == 64 and not features else 32  # the head of the source says why
    return Kernel(
        name=f"spark_attention_forward_sm80_{_variant(padded_dim, aligned, bfloat16)}{features.suffix}",
        file=Path(__file__).with_name("forward_sm80.cu"),
        entry="spark_attention_forward_sm80",
        arch="sm_80",
        macros=(
            *_variant_macros(padded_dim, aligned, bfloat16),
            *features.macros,
            ("BLOCK_N", block_n),
            ("MIN_BLOCKS", 2),
        ),
        threads=128,
        dynamic_shared_bytes=(BLOCK_M + 2 * block_n) * padded_dim * 2,
        max_registers=255,
        min_blocks_per_sm=2,
    )


def backward_kernel(padded_dim: int, aligned: bool, bfloat16: bool, features: Features = PLAIN) -> Kernel:
    """The backward for head dims up to `padded_dim`; one block for each BACKWARD_KEYS keys of a key-value head.

    aligned, bfloat16: as `forward_kernel`.
    """
    # K, V, two stages of Q and dout; ds, at 128 also p; two stages of statistics. 2 bytes an element, 8 a statistic.
    elements = (2 * BACKWARD_KEYS + 4 * BACKWARD_ROWS) * padded_dim + padded_dim // 64 * BACKWARD_KEYS * BACKWARD_ROWS
    blocks_per_sm = 128 // padded_dim
    return Kernel(
        name=f"spark_attention_backward_sm80_{_variant(padded_dim, aligned, bfloat16)}{features.suffix}",
        file=Path(__file__).with_name("backward_sm80.cu"),
        entry="spark_attention_backward_sm80",
        arch="sm_80",
        macros=(
            *_variant_macros(padded_dim, aligned, bfloat16),
            *features.macros,
            ("BLOCK_ROWS", BACKWARD_ROWS),
            ("MIN_BLOCKS", blocks_per_sm),
        ),
        threads=2 * padded_dim,
        dynamic_shared_bytes=2 * elements + 2 * BACKWARD_ROWS * 8,
        max_registers=255,
        min_blocks_per_sm=blocks_per_sm,
    )


def backward_prepare_kernel(
    padded_dim: int, aligned: bool, bfloat16: bool, *, rows: int = BACKWARD_ROWS, base2: bool = False
) -> Kernel:
    """What runs before the backward; one block for each `rows` queries of a head. base2: log-sum-exps to that base."""
    variant = _variant(padded_dim, aligned, bfloat16)
    return Kernel(
        name=f"spark_attention_backward_prepare_sm80_{variant}{f'_m{rows}_base2' if base2 else ''}",
        file=Path(__file__).with_name("backward_prepare_sm80.cu"),
        entry="spark_attention_backward_prepare_sm80",
        arch="sm_80",
        macros=(
            *_variant_macros(padded_dim, aligned, bfloat16),
            ("BLOCK_ROWS", rows),
            ("LSE_FACTOR", f"{math.log2(math.e) if base2 else 1.0}f"),
        ),
        threads=2 * rows,
        dynamic_shared_bytes=2 * rows * padded_dim * 2,
        max_registers=64,
        min_blocks_per_sm=2,
    )


def _variant(padded_dim: int, aligned: bool, bfloat16: bool) -> str:
    return f"d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}{'' if aligned else '_unaligned'}"


def _variant_macros(padded_dim: int, aligned: bool, bfloat16: bool) -> tuple[tuple[str, int], ...]:
    return ("PADDED_DIM", padded_dim), ("ALIGNED", int(aligned)), ("BFLOAT16", int(bfloat16))


_VARIANTS = tuple(itertools.product((64, 128), (True, False), (False, True)))
FORWARD = tuple(forward_kernel(*variant) for variant in _VARIANTS)
BACKWARD = tuple(make(*variant) for make in (backward_prepare_kernel, backward_kernel) for variant in _VARIANTS)
WITH_EXTRAS = tuple(
    make(padded_dim, True, False, REPORTED) for make in (forward_kernel, backward_kernel) for padded_dim in (64, 128)
)
