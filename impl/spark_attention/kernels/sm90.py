"""The sm_90a forward kernels."""

from __future__ import annotations

import functools
from pathlib import Path

from impl.cuda.build import Kernel

_STAGES = 2
_BARRIER_BYTES = 8 * (2 + 4 * _STAGES)
_CONSUMERS = {64: 3, 128: 2}  # warpgroups of 64 query rows each, by padded head dim
_REGISTERS = {2: (24, 240), 3: (32, 160)}  # of a producer's and a consumer's thread, by consumers


@functools.cache
def forward_kernel(padded_dim: int, causal: bool, bfloat16: bool) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128), with the tile that suits a causal mask or none."""
    consumers, keys = _CONSUMERS[padded_dim], block_n(padded_dim, causal)
    producer_registers, consumer_registers = _REGISTERS[consumers]
    threads = 128 * (consumers + 1)
    return Kernel(
        name=f"spark_attention_forward_sm90a_d{padded_dim}_n{keys}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name("forward_sm90a.cu"),
        entry="spark_attention_forward_sm90a",
        arch="sm_90a",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("BLOCK_N", keys),
            ("CONSUMERS", consumers),
            ("STAGES", _STAGES),
            ("BFLOAT16", int(bfloat16)),
            ("PRODUCER_REGISTERS", producer_registers),
            ("CONSUMER_REGISTERS", consumer_registers),
        ),
        threads=threads,
        dynamic_shared_bytes=(64 * consumers + 2 * _STAGES * keys) * padded_dim * 2 + _BARRIER_BYTES,
        max_registers=65536 // threads // 8 * 8,
        min_blocks_per_sm=1,
    )


def block_m(padded_dim: int) -> int:
    """Query rows of a block."""
    return 64 * _CONSUMERS[padded_dim]


def block_n(padded_dim: int, causal: bool) -> int:
    """Keys of a tile: as many as registers allow, but a causal mask wastes half of a diagonal tile."""
    return 128 if causal or padded_dim == 64 else 176


FORWARD = tuple(
    forward_kernel(padded_dim, causal, bfloat16)
    for padded_dim, causal in ((64, True), (128, True), (128, False))
    for bfloat16 in (False, True)
)
