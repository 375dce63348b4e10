"""The sums that the test of transition needs of averaged attention maps, by its kernel, on any architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Launch

_ROWS, _SUMS = 16, 4
_ROUNDING = 1e-12  # of the sums: a smaller variance is none
KERNEL = Kernel(
    name="map_statistics",
    file=Path(__file__).with_name("map_statistics.cu"),
    entry="map_statistics",
    arch="sm_70",
    macros=(),
    threads=256,
    dynamic_shared_bytes=0,
    max_registers=64,
    min_blocks_per_sm=4,
)


def map_statistics(maps: Tensor, before: Tensor, *, launch: Launch) -> tuple[Tensor, Tensor]:
    """Skewness of each of `maps` and distance to the one `before`, float32 [layers] each; `before` becomes `maps`.

    maps, before: float32 [layers, seqlen, seqlen], contiguous. Skewness is of the population, 0 for a constant.
    """
    layers, seqlen, _ = maps.shape
    groups = -(-seqlen // _ROWS)
    sums = torch.empty(layers, groups, _SUMS, dtype=torch.float64, device=maps.device)
    launch(KERNEL, (groups, layers, 1), [maps, before, sums, np.int32(seqlen)])
    first, second, third, change = sums.sum(1).unbind(1)
    mean, square, cube = (total / seqlen**2 for total in (first, second, third))
    variance = square - mean**2
    skewness = (cube - 3 * mean * square + 2 * mean**3) / variance.clamp(min=0).pow(1.5)
    varies = variance > _ROUNDING * square
    return torch.where(varies, skewness, 0.0).float(), change.sqrt().float()
