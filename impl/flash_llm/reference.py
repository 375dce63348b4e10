"""The blocked algorithm in plain PyTorch: the specification of the kernel, and the op on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm.formats import TILE_COLS, TILE_ROWS, expand_tiles, tile_grid


def spmm(entries: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int) -> Tensor:
    """Y [m, n] float16 of a matrix [m, k] in Tiled-CSL (its entries and offsets) and x [k, n] float16.

    Tile by tile: expand, multiply in float32, add. k is cut into `split_k` runs of whole tiles, each with a
    float32 sum of its own; these are added in order and rounded once. What x holds meets the matrix's zeros
    as it would in a dense product: 0 times infinity is NaN.
    """
    k, n = x.shape
    tiles_m, tiles_k = tile_grid(m, k)
    x_tiles = torch.nn.functional.pad(x.float(), (0, 0, 0, tiles_k * TILE_COLS - k)).view(tiles_k, TILE_COLS, n)
    y = torch.empty(m, n, dtype=torch.float16, device=x.device)
    for row in range(tiles_m):
        w_tiles = expand_tiles(entries, offsets, row * tiles_k, (row + 1) * tiles_k).float()
        partials = torch.zeros(split_k, TILE_ROWS, n, device=x.device)
        for partial, *steps in zip(partials, w_tiles.tensor_split(split_k), x_tiles.tensor_split(split_k), strict=True):
            for w_tile, x_tile in zip(*steps, strict=True):
                partial.addmm_(w_tile, x_tile)
        total = partials[0]
        for partial in partials[1:]:
            total += partial
        rows = slice(row * TILE_ROWS, (row + 1) * TILE_ROWS)
        y[rows] = total[: m - row * TILE_ROWS].half()
    return y
