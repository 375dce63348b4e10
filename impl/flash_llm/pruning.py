"""Magnitude pruning to an exact count, and what a pattern of zeros is like tile by tile."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS

_SLAB = 1 << 24  # elements looked at at once; that many ones are counted exactly in float32
_SAMPLE = 1 << 20  # elements that a first guess of the threshold is made from
_MAGNITUDES = 1 << 15  # of a 16-bit float: its bits without the sign, in the order of its absolute values


def prune_(w: Tensor, sparsity: float) -> Tensor:
    """Set the round(sparsity * m * k) elements of least magnitude to zero, in place; returns w [m, k].

    float16 or bfloat16, contiguous. Among elements of one magnitude those come first that are first row by row, so the
    same elements go on any device. NaN counts as larger than infinity. Takes memory for a slab, not for w. Raises
    TypeError for another dtype or layout, ValueError for a sparsity outside [0, 1].
    """
    if w.dtype not in (torch.float16, torch.bfloat16) or not w.is_contiguous():
        raise TypeError(f"w must be contiguous and float16 or bfloat16, not {w.dtype}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity must be in [0, 1], not {sparsity}")
    wanted = round(sparsity * w.numel())
    elements = w.view(-1)
    threshold, below = _threshold(elements, wanted)
    left = wanted - below  # of the threshold's magnitude
    for slab in elements.split(_SLAB):
        magnitudes = _magnitudes(slab)
        slab.masked_fill_(magnitudes < threshold, 0)
        first = (magnitudes == threshold).nonzero().squeeze(1)[:left]
        slab[first] = 0
        left -= len(first)
    return w


def _threshold(elements: Tensor, wanted: int) -> tuple[int, int]:
    """The largest magnitude that no more than `wanted` are below of, and how many are: by halving what a sample leaves
    in doubt, or all, where the sample misleads."""

    @functools.cache
    def below(magnitude: int) -> int:
        if magnitude == _MAGNITUDES:
            return len(elements) + 1
        # PyTorch sums bool by way of a copy in int64, and float16 on a GPU without any.
        counts = [(_magnitudes(slab) < magnitude).half().sum(dtype=torch.float32) for slab in elements.split(_SLAB)]
        return int(torch.stack(counts).double().sum())

    sample = _magnitudes(elements[:: -(-len(elements) // _SAMPLE)]).sort().values
    place, margin = wanted * len(sample) // len(elements), 2 * int(len(sample) ** 0.5)  # 4 deviations, at most
    guess = [int(sample[min(max(place + way * margin, 0), len(sample) - 1)]) for way in (-1, 1)]
    for low, high in ((guess[0], guess[1] + 1), (0, _MAGNITUDES)):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if below(middle) <= wanted else (low, middle)
        if below(low) <= wanted < below(high):
            break
    return low, below(low)


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
