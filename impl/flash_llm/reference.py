"""The blocked algorithm in plain PyTorch: the specification of the kernels, and the op on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm.formats import SparseMatrix


def spmm(kind: type[SparseMatrix], data: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int) -> Tensor:
    """Y [m, n] float16 of a matrix [m, k] in the format `kind` (its data and offsets) and x [k, n] float16.

    Tile by tile: expand, multiply in float32, add. k is cut into `split_k` runs of whole tiles, each with a
    float32 sum of its own; these are added in order and rounded once. What x holds meets the matrix's zeros
    as it would in a dense product: 0 times infinity is NaN.
    """
    k, n = x.shape
    rows, columns = kind.tile
    tiles_k = kind.grid(m, k)[1]
    x_tiles = torch.nn.functional.pad(x.float(), (0, 0, 0, tiles_k * columns - k)).view(tiles_k, columns, n)
    y = torch.empty(m, n, dtype=torch.float16, device=x.device)
    for row, begin in enumerate(range(0, m, rows)):
        w_tiles = kind.expand(data, offsets, row * tiles_k, (row + 1) * tiles_k).float()
        partials = torch.zeros(split_k, rows, n, device=x.device)
        for partial, *steps in zip(partials, w_tiles.tensor_split(split_k), x_tiles.tensor_split(split_k), strict=True):
            for w_tile, x_tile in zip(*steps, strict=True):
                partial.addmm_(w_tile, x_tile)
        total = partials[0]
        for partial in partials[1:]:
            total += partial
        y[begin : begin + rows] = total[: m - begin].half()
    return y
