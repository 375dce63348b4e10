"""Planning the sm_90a products: what fits on an SM, and the equal shares of the blocks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap, loadable
from impl.flash_llm.kernels.plan import Device, Problem, aligned_rows, check_split_k
from impl.flash_llm.kernels.warp_blocks import (
    BITMAP,
    BLOCK_COLS,
    BLOCK_OVERHEAD,
    BLOCK_ROWS,
    REGISTERS,
    TWO_OF_FOUR,
    WarpBlocks,
)

_STAGES = 2


def _shared_bytes(blocks: WarpBlocks, tile_n: int, warps: int, stage_pieces: int) -> int:
    w_bytes = _STAGES * warps * stage_pieces * blocks.piece_bytes
    control = 8 * (_STAGES * warps + 2 * _STAGES) + 2 * 16
    return _STAGES * 2 * BLOCK_COLS * tile_n + w_bytes + control


def _kernel(blocks: WarpBlocks, tile_n: int, warps: int, per_sm: int, **macros: int) -> Kernel:
    shared_bytes = _shared_bytes(blocks, tile_n, warps, blocks.nominal_pieces)
    registers = REGISTERS // (32 * warps * per_sm) // 8 * 8
    return blocks.kernel("sm_90a", tile_n, warps, shared_bytes, registers, per_sm, STAGES=_STAGES, **macros)


# By format and the width of the tile. The wider ones need more registers for each thread: fewer warps, and in smaller
# blocks, of which more fit when W is dense.
SPMM = {
    BITMAP: {
        8: _kernel(BITMAP, 8, warps=8, per_sm=2, UNROLL=2),
        16: _kernel(BITMAP, 16, warps=8, per_sm=2, UNROLL=2),
        32: _kernel(BITMAP, 32, warps=4, per_sm=3, UNROLL=2),
        64: _kernel(BITMAP, 64, warps=4, per_sm=3, UNROLL=1),
    },
    TWO_OF_FOUR: {
        8: _kernel(TWO_OF_FOUR, 8, warps=8, per_sm=2),
        16: _kernel(TWO_OF_FOUR, 16, warps=8, per_sm=2),
        32: _kernel(TWO_OF_FOUR, 32, warps=8, per_sm=2),
        64: _kernel(TWO_OF_FOUR, 64, warps=4, per_sm=3),
    },
}


@dataclass(frozen=True)
class SharedPlan:
    """How one multiplication is cut: rows and columns of Y per tile, and the blocks that share the tiles' segments."""

    kernel: Kernel
    tile_m: int
    tile_n: int
    blocks: int
    split_k: int  # blocks to a tile, rounded up
    stage_pieces: int

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is launched, in order."""
        return (self.kernel,)

    def multiply(self, data: Tensor, offsets: Tensor, x: Tensor, m: int, launch: Callable[..., None]) -> Tensor:
        """As `Plan.multiply`. An x that the copy engine cannot load is copied first."""
        k, n = x.shape
        tiles, tiles_n = -(-m // self.tile_m), -(-n // self.tile_n)
        y = torch.empty(m, n, dtype=torch.float16, device=x.device)
        partials = torch.empty(tiles_n, self.blocks, 2, self.tile_m * self.tile_n, device=x.device)
        if not loadable(x[None, None]):
            x = aligned_rows(x)
        x_map = TensorMap(x[None, None], BLOCK_COLS, self.tile_n)
        sizes = map(np.int32, (m, n, -(-k // BLOCK_COLS), self.stage_pieces))
        arguments = (x_map, data, offsets, y, partials, _counters(x.device, tiles * tiles_n), *sizes)
        launch(self.kernel, (self.blocks, tiles_n, 1), arguments)
        return y


@functools.cache
def choose_plan(blocks: WarpBlocks, problem: Problem, device: Device, split_k: int | None = None) -> SharedPlan:
    """The plan of a product on `device`.

    The narrowest tile that holds n, or the widest, and as many blocks as the GPU holds at once. `split_k` overrides
    that: so many blocks for each tile, 1 to the number of segments in k. Raises ValueError beyond that.
    """
    tile_n = next((width for width in SPMM[blocks] if width >= problem.n), max(SPMM[blocks]))
    kernel = SPMM[blocks][tile_n]
    warps = kernel.threads // 32
    shared_bytes = _shared_bytes(blocks, tile_n, warps, problem.longest)
    tile_m = BLOCK_ROWS * warps
    tiles = -(-problem.m // tile_m)
    segments = -(-problem.k // BLOCK_COLS)
    check_split_k(split_k, segments, problem.k)
    resident = min(kernel.min_blocks_per_sm, device.shared_bytes_per_sm // (shared_bytes + BLOCK_OVERHEAD))
    kernel = dataclasses.replace(kernel, dynamic_shared_bytes=shared_bytes)
    sharing = tiles * split_k if split_k else min(tiles * segments, device.sm_count * resident)
    return SharedPlan(kernel, tile_m, tile_n, sharing, -(-sharing // tiles), problem.longest)


def _counters(device: torch.device, tiles: int) -> Tensor:
    """Zeros, of which every launch leaves zeros: one tensor for all launches of a stream, and one for all that a CUDA
    graph captures of it, for what was captured before may never run."""
    size = 1 << (tiles - 1).bit_length()
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        from impl.cuda.launch import capture_id

        return _zeros_of_capture(device, stream, size, capture_id(stream))
    return _zeros(device, stream, size)


@functools.cache
def _zeros(device: torch.device, stream: int, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=8)  # sizes: no more is wanted of a graph once it is captured
def _zeros_of_capture(device: torch.device, stream: int, size: int, capture: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)
