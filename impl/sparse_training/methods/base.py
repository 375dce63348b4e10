"""What methods share: the attention module, its map, and the mask of padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

MAP_SCORES = 2**28  # of averaged_map at once: 1 GiB in float32


def key_mask(lengths: Tensor, seqlen: int) -> Tensor:
    """bool [batch, 1, 1, seqlen], False at padding."""
    return (torch.arange(seqlen, device=lengths.device) < lengths[:, None])[:, None, None]


def probabilities(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    """The attention map of each head, [batch, heads, seqlen, seqlen]."""
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~key_mask(lengths, k.shape[2]), -math.inf)
    return scores.softmax(-1)


@torch.no_grad()
def averaged_map(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    """The attention map averaged over batch and heads, float32 [seqlen, seqlen], a part of the batch at a time."""
    batch, heads, seqlen, _ = q.shape
    at_once = max(1, MAP_SCORES // (heads * seqlen * seqlen))
    total = torch.zeros(seqlen, seqlen, device=q.device)
    for part in zip(q.split(at_once), k.split(at_once), lengths.split(at_once), strict=True):
        total += probabilities(*part).sum((0, 1), dtype=torch.float32)
    return total / (batch * heads)


class Attention(nn.Module):
    """What the layers of a method share. `map` is the averaged map of the last call that was `watched`."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.map: Tensor | None = None


def in_float32(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`forward` of a module with q, k, v in float32, whatever autocast says; its output in v's dtype again."""

    @functools.wraps(forward)
    def wide(self: nn.Module, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            return forward(self, q.float(), k.float(), v.float(), lengths).to(v.dtype)

    return wide
