"""The blocked algorithm in plain PyTorch: the specification of the kernels, and the op on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from impl.flash_llm.bitmap import BLOCK_COLS, BLOCK_ROWS, block_grid, expand_blocks
from impl.flash_llm.formats import TILE_COLS, TILE_ROWS, expand_tiles, tile_grid


def spmm(entries: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int) -> Tensor:
    """Y [m, n] float16 of a matrix [m, k] in Tiled-CSL (its entries and offsets) and x [k, n] float16.

    Tile by tile: expand, multiply in float32, add. k is cut into `split_k` runs of whole tiles, each with a
    float32 sum of its own; these are added in order and rounded once. What x holds meets the matrix's zeros
    as it would in a dense product: 0 times infinity is NaN.
    """
    tiles_k = tile_grid(m, len(x))[1]

    def tiles(row: int) -> Tensor:
        return expand_tiles(entries, offsets, row * tiles_k, (row + 1) * tiles_k)

    return _multiply(tiles, (TILE_ROWS, TILE_COLS), x, m, split_k)


def spmm_bitmap(lines: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int) -> Tensor:
    """As `spmm`, of a matrix in the bitmap format (its lines and offsets), block by block."""
    blocks_k = block_grid(m, len(x))[1]

    def blocks(row: int) -> Tensor:
        return expand_blocks(lines, offsets, row * blocks_k, (row + 1) * blocks_k)

    return _multiply(blocks, (BLOCK_ROWS, BLOCK_COLS), x, m, split_k)


def _multiply(tiles_of: Callable[[int], Tensor], tile: tuple[int, int], x: Tensor, m: int, split_k: int) -> Tensor:
    """Y [m, n] of the dense tiles [tiles_k, *tile] that `tiles_of(row)` gives for each row of tiles."""
    tile_rows, tile_cols = tile
    k, n = x.shape
    tiles_k = -(-k // tile_cols)
    x_tiles = torch.nn.functional.pad(x.float(), (0, 0, 0, tiles_k * tile_cols - k)).view(tiles_k, tile_cols, n)
    y = torch.empty(m, n, dtype=torch.float16, device=x.device)
    for row, begin in enumerate(range(0, m, tile_rows)):
        w_tiles = tiles_of(row).float()
        partials = torch.zeros(split_k, tile_rows, n, device=x.device)
        for partial, *steps in zip(partials, w_tiles.tensor_split(split_k), x_tiles.tensor_split(split_k), strict=True):
            for w_tile, x_tile in zip(*steps, strict=True):
                partial.addmm_(w_tile, x_tile)
        total = partials[0]
        for partial in partials[1:]:
            total += partial
        y[begin : begin + tile_rows] = total[: m - begin].half()
    return y
