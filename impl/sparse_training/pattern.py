"""Which blocks of the attention map are kept: SAT's learned pattern and test of transition, and SPION's flood fill.

A pattern is bool [blocks, blocks], blocks = ceil(seqlen / block). An attention map is averaged over batch and heads,
float32 [seqlen, seqlen]. All on the tensors' device but the flood fill, a walk over some thousand blocks, once per run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from impl.sparse_training.kernels.map_statistics import map_statistics

RANK = 32  # of the learned pattern
PATTERN_LOSS = 0.01  # times layers, before the sum of the layers' losses
DIAGONAL_FILTER = 31  # side of SPION's convolution
SpionVariant = Literal["C", "F", "CF"]


class LearnedPattern(nn.Module):
    """W_P [blocks, RANK] of one layer, U(0, 1) at first; W_P W_P^T learns the pooled map (Yoon et al. 2024)."""

    def __init__(self, blocks: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(blocks, RANK))

    def forward(self) -> Tensor:
        """The symmetric score of each block, [blocks, blocks]."""
        return self.weight @ self.weight.T

    def loss(self, pooled: Tensor) -> Tensor:
        """Mean squared error to the pooled map, which gets no gradient."""
        return functional.mse_loss(self(), pooled.detach())


def pattern_loss(patterns: Iterable[LearnedPattern], maps: Tensor, block: int) -> Tensor:
    """The published weight times the sum of the layers' losses; maps: float32 [layers, seqlen, seqlen]."""
    losses = [pattern.loss(pooled) for pattern, pooled in zip(patterns, pool(maps, block), strict=True)]
    return PATTERN_LOSS * len(maps) * sum(losses)


def pool(attention_map: Tensor, block: int) -> Tensor:
    """Mean of each block, [..., blocks, blocks]; blocks at the edges average the elements they have."""
    size = attention_map.shape[-1]
    if padding := -size % block:
        attention_map = functional.pad(attention_map, (0, padding, 0, padding))
    rows = attention_map.unflatten(-2, (-1, block)).sum(-2)  # first, as it reads whole rows of the map
    blocks = rows.unflatten(-1, (-1, block)).sum(-1)
    counts = (size - block * torch.arange(blocks.shape[-1], device=blocks.device)).clamp(max=block)
    return blocks / (counts[:, None] * counts)


def largest_blocks(scores: Tensor, density: float, keep_diagonal: bool = False) -> Tensor:
    """The int(blocks^2 * density) blocks of the largest scores [blocks, blocks]; of equal ones the first by row.

    keep_diagonal: the diagonal is among them, or is all of them where it alone is more. Raises ValueError for a density
    outside [0, 1] or scores that are not finite.
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density must be 0 to 1, not {density}")
    if not scores.isfinite().all():
        raise ValueError("the scores of blocks hold NaN or infinity")
    kept = int(scores.numel() * density)
    if keep_diagonal:
        kept = max(kept, len(scores))
        scores = scores.clone().fill_diagonal_(torch.inf)
    order = scores.flatten().argsort(descending=True, stable=True)
    pattern = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    pattern[order[:kept]] = True
    return pattern.view_as(scores)


def spion_pattern(attention_map: Tensor, block: int, variant: SpionVariant, *, density: float, alpha: float) -> Tensor:
    """SPION's pattern of one map (arXiv 2309.12578): C, convolution and top-k; F, flood fill; CF, both but top-k.

    density is C's, alpha the quantile of the pooled map above which F and CF fill. The diagonal is always kept.
    """
    if "C" in variant:
        diagonal = torch.eye(DIAGONAL_FILTER, device=attention_map.device)[None, None] / DIAGONAL_FILTER
        attention_map = functional.conv2d(attention_map[None, None], diagonal, padding=DIAGONAL_FILTER // 2)[0, 0]
    pooled = pool(attention_map, block)
    if variant == "C":
        return largest_blocks(pooled, density, keep_diagonal=True)
    return flood_fill(pooled, alpha)


def flood_fill(pooled: Tensor, alpha: float) -> Tensor:
    """From each block of the first row and column: on to the largest of the neighbours below, right and diagonal, kept
    and gone on from while it is above the alpha-quantile; of equal ones the diagonal, then the one below."""
    scores, threshold = pooled.tolist(), pooled.flatten().float().quantile(alpha).item()
    blocks = len(scores)
    kept = [[row == column for column in range(blocks)] for row in range(blocks)]
    for seed in [(0, column) for column in range(blocks)] + [(row, 0) for row in range(1, blocks)]:
        row, column = seed
        while True:
            nexts = [(row + 1, column + 1), (row + 1, column), (row, column + 1)]
            nexts = [(r, c) for r, c in nexts if r < blocks and c < blocks]
            if not nexts:
                break
            row, column = max(nexts, key=lambda place: scores[place[0]][place[1]])
            if scores[row][column] <= threshold:
                break
            kept[row][column] = True
    return torch.tensor(kept, device=pooled.device)


@dataclass(frozen=True)
class Reading:
    """What the monitor saw on one step, [layers] each, on the device."""

    skewness: Tensor
    distance: Tensor  # to the map before; NaN on the first step
    settled: Tensor  # bool [], skewness and distance both pass in all layers


class TransitionMonitor(nn.Module):
    """SAT's test: skewness of each layer's map at least 1.7, and its distance to the map before changing by less than
    1.3 %, in all layers on the same step. Everything stays on the device until `settled` is read.

    The state (last maps and distances) is in state_dict, so a run resumes in the middle of the transition.
    """

    maps: Tensor
    distance: Tensor

    def __init__(self, layers: int, size: int, min_skewness: float = 1.7, max_change: float = 0.013):
        """size: rows of a map, seqlen, or blocks for the variant that monitors pooled maps."""
        super().__init__()
        self.min_skewness, self.max_change = min_skewness, max_change
        self.register_buffer("maps", torch.full((layers, size, size), torch.nan))
        self.register_buffer("distance", torch.full((layers,), torch.nan))

    @torch.no_grad()
    def forward(self, maps: Tensor) -> Reading:
        """maps: float32 [layers, size, size] of this step."""
        skewness, distance = statistics(maps, self.maps)
        change = (distance - self.distance).abs() / self.distance  # NaN on the first two steps: not below anything
        settled = (skewness >= self.min_skewness).all() & (change < self.max_change).all()
        self.distance.copy_(distance)
        return Reading(skewness, distance, settled)


def statistics(maps: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Skewness of each map, and distance to the one before it, float32 [layers]; `before` becomes `maps`."""
    if maps.is_cuda:
        from impl.cuda.launch import launch

        return map_statistics(maps.contiguous(), before, launch=launch)
    distance = torch.linalg.vector_norm(maps - before, dim=(1, 2))
    before.copy_(maps)
    return skewness_of(maps), distance


def skewness_of(maps: Tensor) -> Tensor:
    """mean(((X - mean) / std)^3) of each map X [..., rows, columns], of the population; 0 for a constant."""
    centred = maps - maps.mean((-2, -1), keepdim=True)
    squares = centred.square()
    variance, third = squares.mean((-2, -1)), squares.mul_(centred).mean((-2, -1))
    return torch.where(variance > 0, third / variance.pow(1.5), 0.0)
