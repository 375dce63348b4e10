"""The sm_90a forward kernels: which tensors they take, their launch geometry and their arguments."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.launch import Argument
from impl.cuda.tensor_map import TensorMap, loadable

_STAGES = 2
_BARRIER_BYTES = 8 * (2 + 4 * _STAGES)
_CONSUMERS = {64: 3, 128: 2}  # warpgroups of 64 query rows each, by padded head dim
_REGISTERS = {2: (24, 240), 3: (32, 160)}  # of a producer's and a consumer's thread, by consumers


@functools.cache
def forward_kernel(padded_dim: int, causal: bool, bfloat16: bool) -> Kernel:
    """The forward for head dims up to `padded_dim` (64 or 128), with the tile that suits a causal mask or none."""
    consumers, block_n = _CONSUMERS[padded_dim], _block_n(padded_dim, causal)
    producer_registers, consumer_registers = _REGISTERS[consumers]
    threads = 128 * (consumers + 1)
    return Kernel(
        name=f"spark_attention_forward_sm90a_d{padded_dim}_n{block_n}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name("forward_sm90a.cu"),
        entry="spark_attention_forward_sm90a",
        arch="sm_90a",
        macros=(
            ("PADDED_DIM", padded_dim),
            ("BLOCK_N", block_n),
            ("CONSUMERS", consumers),
            ("STAGES", _STAGES),
            ("BFLOAT16", int(bfloat16)),
            ("PRODUCER_REGISTERS", producer_registers),
            ("CONSUMER_REGISTERS", consumer_registers),
        ),
        threads=threads,
        dynamic_shared_bytes=(64 * consumers + 2 * _STAGES * block_n) * padded_dim * 2 + _BARRIER_BYTES,
        max_registers=65536 // threads // 8 * 8,
        min_blocks_per_sm=1,
    )


def _block_n(padded_dim: int, causal: bool) -> int:
    """Keys of a tile: as many as registers allow, but a causal mask wastes half of a diagonal tile."""
    return 128 if causal or padded_dim == 64 else 176


FORWARD = tuple(
    forward_kernel(padded_dim, causal, bfloat16)
    for padded_dim, causal in ((64, True), (128, True), (128, False))
    for bfloat16 in (False, True)
)


def takes(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> bool:
    """Whether the copy engine can load the inputs, and 16-byte stores can write the output; if not, sm80 can."""
    return (
        q.shape[-1] % 8 == 0
        and all(map(loadable, (q, k, v)))
        and out.data_ptr() % 16 == 0
        and all(stride % 8 == 0 for stride in out.stride()[:3])
    )


def forward_call(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, softmax_scale: float
) -> tuple[Kernel, tuple[int, int, int], list[Argument]]:
    """Kernel, grid and arguments of the forward into `out` and `lse` (as of kernels.forward.empty_outputs).

    The tensors must be ones that `takes` accepts.
    """
    batch, heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    padded_dim = 64 if head_dim <= 64 else 128
    kernel = forward_kernel(padded_dim, causal, q.dtype == torch.bfloat16)
    block_m, block_n = 64 * _CONSUMERS[padded_dim], _block_n(padded_dim, causal)
    query_tiles = -(-seqlen_q // block_m)
    tiles = query_tiles * heads * batch
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // k.shape[1], causal_offset, query_tiles, tiles)
    arguments = [
        TensorMap(q, block_m),
        TensorMap(k, block_n),
        TensorMap(v, block_n),
        out,
        lse,
        *map(np.int64, out.stride()[:3]),
        *map(np.int32, sizes),
        np.float32(softmax_scale),
    ]
    return kernel, (tiles, 1, 1), arguments
