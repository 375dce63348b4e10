"""Expanding a compressed weight on a GPU, where a dense product is the faster one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.flash_llm.formats import FORMATS
from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS
from impl.flash_llm.kernels.warp_blocks import BITMAP, BLOCK_ROWS, TWO_OF_FOUR, WarpBlocks

_WARP_BLOCKS = {blocks.kind: blocks for blocks in (BITMAP, TWO_OF_FOUR)}
_WARPS = {"tiled_csl": 4, **dict.fromkeys(_WARP_BLOCKS, 2)}


def _kernel(kind: str, shared_bytes: int, max_registers: int, min_blocks_per_sm: int, **macros: int) -> Kernel:
    return Kernel(
        name=f"flash_llm_expand_{kind}",
        file=Path(__file__).parent / f"expand_{kind}_sm70.cu",
        entry=f"expand_{kind}",
        arch="sm_70",
        macros=(("WARPS", _WARPS[kind]), *macros.items()),
        threads=32 * _WARPS[kind],
        dynamic_shared_bytes=shared_bytes,
        max_registers=max_registers,
        min_blocks_per_sm=min_blocks_per_sm,
    )


def _shared_bytes(blocks: WarpBlocks, longest: int) -> int:
    expanded = BLOCK_ROWS * (2 * blocks.cols + 16)  # its rows 16 bytes apart
    return _WARPS[blocks.kind] * (expanded + blocks.piece_bytes * longest)


EXPAND = {
    "tiled_csl": _kernel("tiled_csl", 2 * TILE_ROWS * TILE_COLS, max_registers=80, min_blocks_per_sm=5, TILE_N=8),
    **{
        blocks.kind: _kernel(
            blocks.kind, _shared_bytes(blocks, blocks.nominal_pieces), max_registers, min_blocks_per_sm,
            BLOCK_COLS=blocks.cols, MIN_BLOCKS_PER_SM=min_blocks_per_sm,
        )
        for blocks, max_registers, min_blocks_per_sm in ((BITMAP, 64, 4), (TWO_OF_FOUR, 80, 2))
    },
}  # fmt: skip


def expand(
    kind: str, data: Tensor, offsets: Tensor, shape: tuple[int, int], longest: int, launch: Callable[..., None]
) -> Tensor:
    """The dense matrix [m, k] float16 of one in the format `kind` (its data, offsets and longest tile), by `launch`."""
    m, k = shape
    dense = torch.empty(m, k, dtype=torch.float16, device=data.device)
    tiles_m, tiles_k = FORMATS[kind].grid(m, k)
    kernel, grid, sizes = EXPAND[kind], tiles_m * tiles_k, (np.int32(m), np.int32(k))
    if kind in _WARP_BLOCKS:
        kernel = dataclasses.replace(kernel, dynamic_shared_bytes=_shared_bytes(_WARP_BLOCKS[kind], longest))
        grid, sizes = -(-grid // _WARPS[kind]), (*sizes, np.int32(longest))
    launch(kernel, (grid, 1, 1), (data, offsets, dense, *sizes))
    return dense
