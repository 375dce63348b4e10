"""Launching the bitmap kernel of sm_90a: its specialisations, what fits on an SM, and its blocks' shares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap, loadable
from impl.flash_llm.bitmap import BLOCK_COLS, BLOCK_ROWS, LANES, block_grid

_LINE_BYTES = 4 * LANES
_BLOCK_OVERHEAD = 1024  # bytes of shared memory that the system takes from each block
_NOMINAL_LINES = 27  # of the densest block, about 80 % zeros: what KERNELS and their reports show


@dataclass(frozen=True)
class Shape:
    """A specialisation: columns of Y and warps of a block, stages of W and of X, words decoded at once."""

    tile_n: int
    warps: int
    stages: int
    x_stages: int
    unroll: int
    min_blocks_per_sm: int

    def shared_bytes(self, stage_lines: int) -> int:
        x_bytes = self.x_stages * 2 * BLOCK_COLS * self.tile_n
        w_bytes = self.stages * self.warps * stage_lines * _LINE_BYTES
        return x_bytes + w_bytes + 8 * (self.stages * self.warps + 2 * self.x_stages + 1)

    def kernel(self, stage_lines: int) -> Kernel:
        macros = {
            "TILE_N": self.tile_n,
            "WARPS": self.warps,
            "STAGES": self.stages,
            "X_STAGES": self.x_stages,
            "UNROLL": self.unroll,
            "MIN_BLOCKS_PER_SM": self.min_blocks_per_sm,
        }
        return Kernel(
            name=f"flash_llm_bitmap_sm90a_n{self.tile_n}_b{self.min_blocks_per_sm}",
            file=Path(__file__).parent / "bitmap_sm90a.cu",
            entry="bitmap_spmm_sm90a",
            arch="sm_90a",
            macros=tuple(macros.items()),
            threads=32 * self.warps,
            dynamic_shared_bytes=self.shared_bytes(stage_lines),
            max_registers=65536 // (32 * self.warps * self.min_blocks_per_sm) // 8 * 8,
            min_blocks_per_sm=1,
        )


def multiply(
    lines: Tensor, offsets: Tensor, x: Tensor, m: int, shape: Shape, stage_lines: int, slots: int, launch: Callable[..., None]
) -> Tensor:
    k, n = x.shape
    segments = block_grid(m, k)[1]
    rows = BLOCK_ROWS * shape.warps
    tiles, tiles_n = -(-m // rows), -(-n // shape.tile_n)
    blocks = min(tiles * segments, slots)
    y = torch.empty(m, n, dtype=torch.float16, device=x.device)
    partials = torch.empty(tiles_n, blocks, 2, rows * shape.tile_n, dtype=torch.float32, device=x.device)
    counters = _counters(x.device, tiles * tiles_n)
    kernel = shape.kernel(stage_lines)
    sizes = (np.int32(m), np.int32(n), np.int32(segments), np.int32(stage_lines))
    x_map = TensorMap(x[None, None], BLOCK_COLS, shape.tile_n)
    launch(kernel, (blocks, tiles_n, 1), (x_map, lines, offsets, y, partials, counters, *sizes))
    return y


@functools.cache
def _counters(device: torch.device, tiles: int) -> Tensor:
    return torch.zeros(tiles, dtype=torch.int32, device=device)
