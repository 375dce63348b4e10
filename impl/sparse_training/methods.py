"""Ways to attend that a training run compares: dense four ways, SAT, SPION, and fixed block patterns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from impl.sparse_training.api import block_sparse_attention
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.recipes import Recipe

MAP_SCORES = 2**28  # of averaged_map at once: 1 GiB in float32


def key_mask(lengths: Tensor, seqlen: int) -> Tensor:
    """bool [batch, 1, 1, seqlen], False at padding."""
    return (torch.arange(seqlen, device=lengths.device) < lengths[:, None])[:, None, None]


def probabilities(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    """The attention map of each head, [batch, heads, seqlen, seqlen]; rows past a sequence's end are 0."""
    seen = key_mask(lengths, k.shape[2])
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
    return torch.where(seen.mT, scores.softmax(-1), 0)


@torch.no_grad()
def averaged_map(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    """The attention map averaged over batch and heads, float32 [seqlen, seqlen], a part of the batch at a time."""
    batch, heads, seqlen, _ = q.shape
    total = torch.zeros(seqlen, seqlen, device=q.device)
    for part in torch.arange(batch, device="cpu").split(max(1, MAP_SCORES // (heads * seqlen * seqlen))):
        rows = slice(int(part[0]), int(part[-1]) + 1)
        total += probabilities(q[rows], k[rows], lengths[rows]).sum((0, 1), dtype=torch.float32)
    return total / (batch * heads)


class DenseFlash(nn.Module):
    """torch's fused attention; it never has the map, so a method that needs one asks for `averaged_map` beside it."""

    def __init__(self, padded: bool):
        super().__init__()
        self.padded = padded
        self.watched = False  # keep the map of the next call
        self.map: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if self.watched:
            self.map = averaged_map(q, k, lengths)
        mask = key_mask(lengths, k.shape[2]) if self.padded else None  # flash takes no mask
        return functional.scaled_dot_product_attention(q, k, v, mask)
