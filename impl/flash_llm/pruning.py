"""Magnitude pruning to an exact count, and what a pattern of zeros is like tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS

_STRIP_ELEMENTS = 1 << 26  # looked at at once, at 4 bytes each at most
_SAMPLE = 1 << 20  # elements that a first guess of the threshold is made from
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
    threshold = _threshold(w, wanted)
    ties = wanted - _count_below(w, threshold)
    for magnitude, elements in _strips(w):
        elements.masked_fill_(magnitude < threshold, 0)
        if ties:
            tied = (magnitude == threshold).nonzero().squeeze(1)[:ties]
            elements[tied] = 0
            ties -= len(tied)
    return w


def _threshold(w: Tensor, wanted: int) -> int:
    """The largest magnitude that no more than `wanted` elements are below of: halved into a bracket that a sample of w
    gives, and that is widened until it holds it."""
    sample = _magnitudes(w.view(-1)[:: -(-w.numel() // _SAMPLE)]).sort().values
    place, margin = wanted * len(sample) // w.numel(), 2 * int(len(sample) ** 0.5)  # four standard deviations, at most
    low, high = (int(sample[min(max(place + way * margin, 0), len(sample) - 1)]) for way in (-1, 1))
    high, step = high + 1, 1
    while low > 0 and _count_below(w, low) > wanted:
        low, high, step = max(0, low - step), low, 2 * step
    while high < _MAGNITUDES and _count_below(w, high) <= wanted:
        low, high, step = high, min(_MAGNITUDES, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _count_below(w, middle) <= wanted else (low, middle)
    return low


def _count_below(w: Tensor, magnitude: int) -> int:
    return int(sum((strip < magnitude).count_nonzero() for strip, _ in _strips(w)))


def _strips(w: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """w a part after the other: magnitudes int16 [size], and the elements themselves."""
    for elements in w.view(-1).split(_STRIP_ELEMENTS):
        yield _magnitudes(elements), elements


def _magnitudes(elements: Tensor) -> Tensor:
    return elements.view(torch.int16) & _MAGNITUDES - 1


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
