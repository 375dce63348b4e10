"""Converting a weight to the format two of four on a GPU: a kernel that measures its blocks, one that writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.flash_llm.kernels.warp_blocks import BLOCK_ROWS, TWO_OF_FOUR

_MASKS = TWO_OF_FOUR.cols // 32
# What the source's `Shared` has: two tiles with rows 8 bytes longer, masks of bits, and three bytes for each column.
_SHARED_BYTES = 2 * BLOCK_ROWS * 2 * (TWO_OF_FOUR.cols + 4) + 4 * _MASKS * (BLOCK_ROWS + 3) + 3 * TWO_OF_FOUR.cols

MEASURE, CONVERT = (
    Kernel(
        name=f"flash_llm_{verb}_two_of_four",
        file=Path(__file__).parent / "convert_two_of_four_sm70.cu",
        entry=f"{verb}_two_of_four",
        arch="sm_70",
        macros=(("BLOCK_COLS", TWO_OF_FOUR.cols),),
        threads=32,
        dynamic_shared_bytes=_SHARED_BYTES,
        max_registers=128,
        min_blocks_per_sm=2,
    )
    for verb in ("measure", "convert")
)


def convert(tiles: Tensor, launch: Callable[..., None]) -> tuple[Tensor, Tensor]:
    """The units int32 [units, 4] of dense blocks [blocks, 32, columns] float16, and the count of units of each, int64
    [blocks], by `launch`: bit for bit those of `TwoOfFour` on a CPU."""
    tiles = tiles.contiguous()
    grid = (len(tiles), 1, 1)
    counts = torch.empty(len(tiles), dtype=torch.int32, device=tiles.device)
    launch(MEASURE, grid, (tiles, counts))
    ends = counts.cumsum(0, dtype=torch.int32)
    units = torch.empty(int(ends[-1]), TWO_OF_FOUR.piece_bytes // 4, dtype=torch.int32, device=tiles.device)
    launch(CONVERT, grid, (tiles, ends - counts, units))
    return units, counts.long()
