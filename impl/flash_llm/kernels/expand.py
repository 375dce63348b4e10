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
from impl.flash_llm.formats.bitmap import BLOCK_COLS, LANES
from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS

_NOMINAL_LINES = 24  # of a bitmap's longest block, at about 80 % zeros: what reports show

_WARPS = {"tiled_csl": 4, "bitmap": 2}
_TILES_PER_BLOCK = {"tiled_csl": 1, "bitmap": _WARPS["bitmap"]}
_BLOCK_BYTES = 32 * (2 * BLOCK_COLS + 16)  # of an expanded block of a bitmap, its rows 16 bytes apart


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


def _bitmap_bytes(longest: int) -> int:
    return _WARPS["bitmap"] * (_BLOCK_BYTES + 4 * LANES * longest)


EXPAND = {
    "tiled_csl": _kernel("tiled_csl", 2 * TILE_ROWS * TILE_COLS, max_registers=80, min_blocks_per_sm=5, TILE_N=8),
    "bitmap": _kernel("bitmap", _bitmap_bytes(_NOMINAL_LINES), max_registers=64, min_blocks_per_sm=4),
}


def expand(
    kind: str, data: Tensor, offsets: Tensor, shape: tuple[int, int], longest: int, launch: Callable[..., None]
) -> Tensor:
    """The dense matrix [m, k] float16 of one in the format `kind` (its data, offsets and longest tile), by `launch`."""
    m, k = shape
    dense = torch.empty(m, k, dtype=torch.float16, device=data.device)
    tiles_m, tiles_k = FORMATS[kind].grid(m, k)
    blocks = -(-tiles_m * tiles_k // _TILES_PER_BLOCK[kind])
    kernel, sizes = EXPAND[kind], (np.int32(m), np.int32(k))
    if kind == "bitmap":
        kernel = dataclasses.replace(kernel, dynamic_shared_bytes=_bitmap_bytes(longest))
        sizes = (*sizes, np.int32(longest))
    launch(kernel, (blocks, 1, 1), (data, offsets, dense, *sizes))
    return dense
