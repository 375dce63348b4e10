"""What launches derive from their tensors, whatever the architecture, and a backward's tensors by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from impl.spark_attention.extras import NONE, Extras

MAX_GRID = 65535  # blocks along y, which are heads, and z, sequences


class Shape(NamedTuple):
    """Query i sees the keys j <= i + causal_offset, and below seqlen_k. Kernels are compiled for padded_dim."""

    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    padded_dim: int
    causal_offset: int

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.heads_kv


def shape_of(q: Tensor, k: Tensor, causal: bool) -> Shape:
    (batch, heads, seqlen_q, head_dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    return Shape(batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, 64 if head_dim <= 64 else 128, causal_offset)


def batch_parts(*tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Those sequences of all tensors that one launch can take, with the number of the first."""
    batch = len(tensors[0])
    if 0 < batch <= MAX_GRID:
        yield 0, tensors
        return
    for first in range(0, batch, MAX_GRID):
        yield first, tuple(tensor[first : first + MAX_GRID] for tensor in tensors)


@dataclass
class Backward:
    """What a backward reads, and from dq on the contiguous gradients that it fills.

    The tensors but those of `extras` begin with sequence `first_batch`.
    """

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    causal: bool
    softmax_scale: float
    extras: Extras = NONE
    first_batch: int = 0

    @property
    def shape(self) -> Shape:
        return shape_of(self.q, self.k, self.causal)

    @property
    def is_bfloat16(self) -> bool:
        return self.q.dtype == torch.bfloat16

    def parts(self) -> Iterator[Backward]:
        """Backwards of so many sequences that a launch can take them."""
        names = ("dout", "q", "k", "v", "out", "lse", "dq", "dk", "dv")
        for first, tensors in batch_parts(*(getattr(self, name) for name in names)):
            yield replace(self, **dict(zip(names, tensors, strict=True)), first_batch=first)
