"""Ways to attend that a training run compares: dense in four ways, SAT, SPION, fixed block patterns.

Each is a module per layer, called with q, k, v [batch, heads, seqlen, head_dim] and lengths int [batch].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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


class Flash(Attention):
    """torch's fused attention, which never has the map: a watched call computes it beside."""

    def __init__(self, padded: bool):
        super().__init__()
        self.padded = padded

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if self.watched:
            self.map = averaged_map(q, k, lengths)
        mask = key_mask(lengths, k.shape[2]) if self.padded else None  # the flash kernel takes no mask
        return functional.scaled_dot_product_attention(q, k, v, mask)


class Materialised(Attention):
    """Matmul, softmax, matmul: the map is there in any case, its average costs a reduction."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        maps = probabilities(q, k, lengths)
        if self.watched:
            self.map = maps.detach().mean((0, 1), dtype=torch.float32)
        return maps @ v


class BlockSparse(Attention):
    """Dense by `dense` until a pattern is set, then over its blocks, the pruned ones counting as logit 0 (SAT)."""

    pattern: Tensor

    def __init__(self, dense: Attention, recipe: Recipe):
        super().__init__()
        self.dense, self.block = dense, recipe.block
        self.register_buffer("pattern", torch.zeros(0, 0, dtype=torch.bool))
        self._blocks: BlockPattern | None = None

    def set_pattern(self, pattern: Tensor) -> None:
        """pattern: bool [blocks, blocks]."""
        self.pattern = pattern
        self._blocks = BlockPattern.of(pattern[None], self.block)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if self._blocks is not None:
            return block_sparse_attention(q, k, v, self._blocks, softmax="pruned_as_zero", lengths=lengths)
        self.dense.watched = self.watched
        out = self.dense(q, k, v, lengths)
        self.map = self.dense.map
        return out


class Linformer(Attention):
    """Keys and values projected along the sequence to `rank` rows, one projection for both (Wang et al. 2020)."""

    def __init__(self, recipe: Recipe, rank: int = 256):
        super().__init__()
        self.project = nn.Parameter(torch.randn(rank, recipe.seqlen) / math.sqrt(recipe.seqlen))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        seen = key_mask(lengths, k.shape[2]).mT
        k, v = (self.project.to(t.dtype) @ t.masked_fill(~seen, 0) for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v)


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


@dataclass(frozen=True)
class Method:
    """A row of the comparison. `choose` makes the pattern at the transition from learned scores or averaged maps."""

    name: str
    label: str
    attention: Callable[[Recipe], Attention]
    transition: Literal["sat", "spion"] | None = None
    map_every_step: bool = False
    monitor_on_cpu: bool = False  # as published: every map goes to the host
    fixed: Callable[[int], Tensor] | None = None  # blocks -> the pattern from the first step on


def _padded(recipe: Recipe) -> bool:
    return recipe.task in ("listops", "text", "retrieval")


def _flash(recipe: Recipe) -> Attention:
    return Flash(_padded(recipe))


def _sparse(recipe: Recipe) -> Attention:
    return BlockSparse(_flash(recipe), recipe)


METHODS = {
    method.name: method
    for method in (
        Method("dense", "Dense, materialised", lambda recipe: Materialised()),
        Method("dense_map", "Dense, map returned", lambda recipe: Materialised(), map_every_step=True),
        Method(
            "dense_monitor",
            "Dense, published monitor",
            lambda recipe: Materialised(),
            map_every_step=True,
            monitor_on_cpu=True,
        ),
        Method("dense_flash", "Dense, SDPA flash", _flash),
        Method("sat", "SAT", _sparse, transition="sat"),
        Method("spion", "SPION-CF", _sparse, transition="spion"),
        Method("window", "Sliding window", _sparse, fixed=window),
        Method("bigbird", "BigBird", _sparse, fixed=bigbird),
        Method("linformer", "Linformer", Linformer),
    )
}
