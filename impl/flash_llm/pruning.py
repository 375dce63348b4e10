"""Magnitude pruning to an exact count, and what a pattern of zeros is like tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS

_STRIP_ELEMENTS = 1 << 24  # looked at at once, at 8 bytes each at most
_MAGNITUDES = 1 << 15  # of a 16-bit float: its bits without the sign, in the order of its absolute values


def prune_(w: Tensor, sparsity: float) -> Tensor:
    """Set the round(sparsity * m * k) elements of least magnitude to zero, in place; returns w [m, k].

    float16 or bfloat16, contiguous. Among elements of one magnitude those come first that are first row by row, so the
    same elements go on any device. NaN counts as larger than infinity. Raises TypeError for another dtype or layout,
    ValueError for a sparsity outside [0, 1].
    """
    if w.dtype not in (torch.float16, torch.bfloat16) or not w.is_contiguous():
        raise TypeError(f"w must be contiguous and float16 or bfloat16, not {w.dtype}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity must be in [0, 1], not {sparsity}")
    wanted = round(sparsity * w.numel())
    below = torch.zeros(_MAGNITUDES + 1, dtype=torch.int64)  # how many elements are of less magnitude
    torch.cumsum(sum(torch.bincount(strip, minlength=_MAGNITUDES).cpu() for strip, _ in _strips(w)), 0, out=below[1:])
    threshold = int(torch.searchsorted(below, wanted, right=True)) - 1  # the last one with no more than wanted below it
    ties = wanted - int(below[threshold])
    for magnitude, elements in _strips(w):
        elements.masked_fill_(magnitude < threshold, 0)
        tied = magnitude == threshold
        count = int(tied.count_nonzero())
        if 0 < ties < count:
            tied &= tied.cumsum(0) <= ties
        if ties:
            elements.masked_fill_(tied, 0)
        ties -= min(ties, count)
    return w


def _strips(w: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """w a part after the other: magnitudes int32 [size], and the elements themselves."""
    for elements in w.view(-1).split(_STRIP_ELEMENTS):
        yield elements.view(torch.int16).int() & _MAGNITUDES - 1, elements


@dataclass(frozen=True)
class TileStatistics:
    """Shares of non-zeros over the tiles of a matrix: the densest tile's, and their variance."""

    densest: float
    variance: float


def tile_statistics(w: Tensor, tile: tuple[int, int] = (TILE_ROWS, TILE_COLS)) -> TileStatistics:
    """Of w [m, k]; a tile at an edge is taken over the elements that it has.

    A random pattern of density p has variance p (1 - p) / (elements of a tile).
    """
    rows, columns = tile
    padding = (0, -w.shape[1] % columns)
    densities = []
    for strip in w.split(rows):
        kept = torch.nn.functional.pad(strip != 0, padding).view(len(strip), -1, columns).sum((0, 2))
        widths = torch.full_like(kept, columns)
        widths[-1] -= padding[1]
        densities.append(kept / (widths * len(strip)))
    density = torch.cat(densities).double()
    return TileStatistics(float(density.max()), float(density.var(unbiased=False)))
