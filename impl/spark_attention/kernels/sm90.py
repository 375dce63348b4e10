"""The sm_90a kernels, forward and backward."""

from __future__ import annotations

import functools
from pathlib import Path

from impl.cuda.build import Kernel
from impl.spark_attention.kernels import sm80

_CONSUMERS = {64: 3, 128: 2}  # warpgroups of 64 query rows each, by padded head dim
_STAGES = {64: 3, 128: 2}  # tiles of keys and of values under way
_REGISTERS = {2: (24, 240), 3: (32, 160)}  # of a producer's and a consumer's thread, by consumers


@functools.cache
def forward_kernel(padded_dim: int, keys: int, bfloat16: bool) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128) with `keys`, of block_n, to a tile."""
    consumers, stages = _CONSUMERS[padded_dim], _STAGES[padded_dim]
    q_stages = 2 if keys == 128 else 1  # as shared memory allows
    barriers = 2 * q_stages * consumers + 4 * stages
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
            ("STAGES", stages),
            ("Q_STAGES", q_stages),
            ("BFLOAT16", int(bfloat16)),
            ("PRODUCER_REGISTERS", producer_registers),
            ("CONSUMER_REGISTERS", consumer_registers),
        ),
        threads=threads,
        dynamic_shared_bytes=(64 * q_stages * consumers + 2 * stages * keys) * padded_dim * 2
        + 8 * barriers
        + 4 * q_stages * consumers,
        max_registers=65536 // threads // 8 * 8,
        min_blocks_per_sm=1,
    )


def block_m(padded_dim: int) -> int:
    """Query rows of a tile."""
    return 64 * _CONSUMERS[padded_dim]


def block_n(padded_dim: int, seqlen_k: int) -> int:
    """Keys of a tile: as many as registers allow; but two buffers for Q, which short sequences feel, leave room for
    fewer."""
    return 128 if padded_dim == 64 or seqlen_k < 2048 else 176


BACKWARD_KEYS = 128
_BACKWARD_STAGES = 2


def backward_rows(padded_dim: int) -> int:
    """Queries of a tile of the backward: as many as registers allow."""
    return 8192 // padded_dim


def backward_kernel(padded_dim: int, bfloat16: bool) -> Kernel:
    """The backward for head dims up to `padded_dim`; one block for each BACKWARD_KEYS keys of a key-value head."""
    rows = backward_rows(padded_dim)
    # K, V, q and dout of each stage, two of ds: 2 bytes an element; dq: 4; statistics: 8; the barriers and a ticket.
    elements = (2 * BACKWARD_KEYS + 2 * _BACKWARD_STAGES * rows) * padded_dim + 2 * BACKWARD_KEYS * rows
    shared_bytes = 2 * elements + 4 * rows * padded_dim + _BACKWARD_STAGES * rows * 8 + 8 * (5 + 4 * _BACKWARD_STAGES)
    producer_registers, consumer_registers = {64: (40, 232), 128: (24, 240)}[padded_dim]
    return Kernel(
        name=f"spark_attention_backward_sm90a_{_variant(padded_dim, bfloat16)}",
        file=Path(__file__).with_name("backward_sm90a.cu"),
        entry="spark_attention_backward_sm90a",
        arch="sm_90a",
        macros=(
            *_variant_macros(padded_dim, bfloat16),
            ("BLOCK_ROWS", rows),
            ("STAGES", _BACKWARD_STAGES),
            ("PRODUCER_REGISTERS", producer_registers),
            ("CONSUMER_REGISTERS", consumer_registers),
        ),
        threads=384,
        dynamic_shared_bytes=shared_bytes,
        max_registers=168,
        min_blocks_per_sm=1,
    )


def backward_convert_kernel(padded_dim: int, bfloat16: bool) -> Kernel:
    """What runs after the backward; one block for each tile of queries."""
    return Kernel(
        name=f"spark_attention_backward_convert_sm90a_{_variant(padded_dim, bfloat16)}",
        file=Path(__file__).with_name("backward_convert_sm90a.cu"),
        entry="spark_attention_backward_convert_sm90a",
        arch="sm_90a",
        macros=(*_variant_macros(padded_dim, bfloat16), ("BLOCK_ROWS", backward_rows(padded_dim))),
        threads=256,
        dynamic_shared_bytes=0,
        max_registers=64,
        min_blocks_per_sm=4,
    )


def backward_prepare_kernel(padded_dim: int, bfloat16: bool, aligned: bool = True) -> Kernel:
    """What runs before the backward; one block for each tile of queries."""
    return sm80.backward_prepare_kernel(padded_dim, aligned, bfloat16, rows=backward_rows(padded_dim), base2=True)


def _variant(padded_dim: int, bfloat16: bool) -> str:
    return f"d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}"


def _variant_macros(padded_dim: int, bfloat16: bool) -> tuple[tuple[str, int], ...]:
    return ("PADDED_DIM", padded_dim), ("BFLOAT16", int(bfloat16))


FORWARD = tuple(
    forward_kernel(padded_dim, keys, bfloat16)
    for padded_dim, keys in ((64, 128), (128, 128), (128, 176))
    for bfloat16 in (False, True)
)

BACKWARD = tuple(
    make(padded_dim, bfloat16)
    for make in (backward_prepare_kernel, backward_kernel, backward_convert_kernel)
    for padded_dim in (64, 128)
    for bfloat16 in (False, True)
)
