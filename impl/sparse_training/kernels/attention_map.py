"""The attention map averaged over batch and heads, by its kernel."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from impl.cuda.build import Kernel
from impl.cuda.steps import Launch, rows_aligned, strides

PADDED_DIMS = (32, 64, 128)
_TILE = 128  # queries, and keys, of a block of threads
_BLOCKS = 1024  # of a grid: four waves on the largest GPUs, so that short sequences balance


@functools.cache
def kernel(padded_dim: int, bfloat16: bool) -> Kernel:
    """For head dims up to `padded_dim`."""
    blocks_per_sm = 1 if padded_dim == 128 else 2
    return Kernel(
        name=f"attention_map_sm80_d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name("attention_map_sm80.cu"),
        entry="attention_map_sm80",
        arch="sm_80",
        macros=(
            *(("PADDED_DIM", padded_dim), ("ALIGNED", 1), ("BFLOAT16", int(bfloat16))),
            ("MIN_BLOCKS", blocks_per_sm),
        ),
        threads=256,
        dynamic_shared_bytes=2 * (2 * _TILE * padded_dim * 2 + _TILE * 4),
        max_registers=255 if padded_dim == 128 else 128,
        min_blocks_per_sm=blocks_per_sm,
    )


ALL = tuple(kernel(padded_dim, bfloat16) for padded_dim in PADDED_DIMS for bfloat16 in (False, True))


def takes(q: Tensor, k: Tensor) -> bool:
    """Whether the kernel takes such tensors, wherever they are: float16 or bfloat16, rows of whole 16 bytes."""
    return (
        q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= PADDED_DIMS[-1]
        and rows_aligned(q)
        and rows_aligned(k)
    )


def averaged_map(q: Tensor, k: Tensor, lse: Tensor, lengths: Tensor, *, launch: Launch) -> Tensor:
    """Mean over batch and heads of exp(q k^T head_dim**-0.5 - lse), float32 [seqlen, seqlen]; deterministic.

    q, k: [batch, heads, seqlen, head_dim] that the kernel `takes`. lse: natural log-sum-exps of the rows, float32
    [batch, heads, seqlen]. lengths: int32 [batch]; keys past them count 0. `launch` runs it.
    """
    batch, heads, seqlen, head_dim = q.shape
    tiles = -(-seqlen // _TILE)
    parts = min(batch, max(1, _BLOCKS // tiles**2))
    maps = torch.empty(parts, seqlen, seqlen, device=q.device)
    sizes = map(np.int32, (batch, heads, seqlen, head_dim))
    factors = map(np.float32, (head_dim**-0.5 / math.log(2), 1 / (batch * heads)))
    padded_dim = next(dim for dim in PADDED_DIMS if head_dim <= dim)
    bases = functional.pad(lse / math.log(2), (0, tiles * _TILE - seqlen))
    arguments = [q, k, bases, lengths, maps, *strides(q, k), *sizes, *factors]
    launch(kernel(padded_dim, q.dtype == torch.bfloat16), (tiles, parts, tiles), arguments)
    return maps[0] if parts == 1 else maps.sum(0)
