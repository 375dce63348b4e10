"""Attention over the kept blocks of a pattern, and the patterns that are fixed from the first step on."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.sparse_training.api import Softmax, block_sparse_attention
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.methods.base import Attention


class BlockSparse(Attention):
    """Dense by `dense` until a pattern is set, then over its blocks. softmax: of block_sparse_attention."""

    pattern: Tensor

    def __init__(self, dense: Attention, block: int, softmax: Softmax):
        super().__init__()
        self.dense, self.block, self.softmax = dense, block, softmax
        self.register_buffer("pattern", torch.zeros(0, 0, dtype=torch.bool))
        self._blocks: BlockPattern | None = None

    def set_pattern(self, pattern: Tensor) -> None:
        """pattern: bool [blocks, blocks]."""
        self.pattern = pattern
        self._blocks = BlockPattern.of(pattern[None], self.block)
        self.map = self.dense.map = None  # the last: there are none of sparse attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if len(self.pattern):
            return self.sparse(q, k, v, lengths)
        self.dense.watched = self.watched
        out = self.dense(q, k, v, lengths)
        self.map = self.dense.map
        return out

    def sparse(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return block_sparse_attention(q, k, v, self._blocks, softmax=self.softmax, lengths=lengths)


def window(blocks: int, radius: int = 1) -> Tensor:
    """Longformer's sliding window: blocks at most `radius` off the diagonal."""
    place = torch.arange(blocks)
    return (place[:, None] - place).abs() <= radius


def bigbird(blocks: int, chosen: int = 3, seed: int = 0) -> Tensor:
    """A window of three blocks, the first and last block global, `chosen` random blocks a row (Zaheer et al. 2020)."""
    pattern = window(blocks)
    pattern[[0, -1]] = True
    pattern[:, [0, -1]] = True
    scores = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(seed)).masked_fill(pattern, -1.0)
    places = scores.topk(min(chosen, blocks), dim=1).indices
    return pattern.scatter(1, places, True)
