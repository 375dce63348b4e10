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
    BLOCK_OVERHEAD,
    BLOCK_ROWS,
    REGISTERS,
    TWO_OF_FOUR,
    WarpBlocks,
)

_STAGES = 2
_LINE = 128  # bytes: copies of W begin at whole lines, up to a line less one piece before the block


def _shared_bytes(blocks: WarpBlocks, tile_n: int, warps: int, stage_pieces: int) -> int:
    line_pieces = _LINE // blocks.piece_bytes
    stage_lines = -(-(stage_pieces + line_pieces - 1) // line_pieces)
    w_bytes = _STAGES * warps * stage_lines * _LINE
    control = 8 * (_STAGES * warps + 2 * _STAGES) + 2 * 16
    return _STAGES * 2 * blocks.cols * tile_n + w_bytes + control


def _kernel(blocks: WarpBlocks, tile_n: int, warps: int, per_sm: int, **macros: int) -> Kernel:
    shared_bytes = _shared_bytes(blocks, tile_n, warps, blocks.nominal_pieces)
    registers = REGISTERS // (32 * warps * per_sm) // 8 * 8
    return blocks.kernel("sm_90a", tile_n, warps, shared_bytes, registers, per_sm, STAGES=_STAGES, **macros)


def _of_two_of_four(tile_n: int, *shapes: tuple[int, int], warpgroups: int) -> tuple[Kernel, ...]:
    return tuple(_kernel(TWO_OF_FOUR, tile_n, warps, per_sm, WARPGROUPS=warpgroups) for warps, per_sm in shapes)


# By format and the width of the tile, from which choose_plan takes one: warps of a block, and blocks on an SM at most.
# Wider tiles need more registers for each thread: fewer warps.
SPMM = {
    BITMAP: {
        8: (_kernel(BITMAP, 8, warps=8, per_sm=2, UNROLL=2),),
        16: (_kernel(BITMAP, 16, warps=8, per_sm=2, UNROLL=2),),
        32: (_kernel(BITMAP, 32, warps=4, per_sm=3, UNROLL=2),),
        64: (_kernel(BITMAP, 64, warps=4, per_sm=3, UNROLL=1),),
    },
    TWO_OF_FOUR: {
        8: _of_two_of_four(8, (4, 4), (8, 2), (12, 1), (16, 1), warpgroups=0),
        16: _of_two_of_four(16, (4, 3), (8, 2), (12, 1), (16, 1), warpgroups=0),
        32: _of_two_of_four(32, (4, 2), (12, 1), (16, 1), warpgroups=1),
        64: _of_two_of_four(64, (4, 2), (8, 1), (12, 1), warpgroups=1),
    },
}


@dataclass(frozen=True)
class SharedPlan:
    """How one multiplication is cut: rows and columns of Y per tile, columns of W in a segment, and the blocks that
    share the tiles' segments."""

    kernel: Kernel
    tile_m: int
    tile_k: int
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
        x_map = TensorMap(x[None, None], self.tile_k, self.tile_n)
        sizes = map(np.int32, (m, n, -(-k // self.tile_k), self.stage_pieces))
        arguments = (x_map, data, offsets, y, partials, _counters(x.device, tiles * tiles_n), *sizes)
        launch(self.kernel, (self.blocks, tiles_n, 1), arguments)
        return y


@functools.cache
def choose_plan(blocks: WarpBlocks, problem: Problem, device: Device, split_k: int | None = None) -> SharedPlan:
    """The plan of a product on `device`.

    The narrowest tile that holds n, or the widest, of those whose stages fit in shared memory; of its kernels the one
    of least `_cost`; as many blocks as the GPU holds at once. `split_k` overrides that: so many blocks for each tile, 1
    to the number of segments in k. Raises ValueError beyond that.
    """
    check_split_k(split_k, -(-problem.k // blocks.cols), problem.k)
    plans = {  # by the width of the tile
        width: [plan for kernel in kernels if (plan := plan_by(kernel, blocks, width, problem, device, split_k))]
        for width, kernels in SPMM[blocks].items()
    }
    widths = [width for width, found in plans.items() if found]
    tile_n = next((width for width in widths if width >= problem.n), max(widths))
    return min(plans[tile_n], key=functools.partial(_cost, problem=problem, device=device))


def plan_by(
    kernel: Kernel, blocks: WarpBlocks, tile_n: int, problem: Problem, device: Device, split_k: int | None
) -> SharedPlan | None:
    """The plan by one kernel, unless not even one of its blocks fits on an SM."""
    warps = kernel.threads // 32
    shared_bytes = _shared_bytes(blocks, tile_n, warps, problem.longest)
    resident = min(kernel.min_blocks_per_sm, device.shared_bytes_per_sm // (shared_bytes + BLOCK_OVERHEAD))
    if resident == 0:
        return None
    tiles, segments = -(-problem.m // (BLOCK_ROWS * warps)), -(-problem.k // blocks.cols)
    sharing = tiles * split_k if split_k else min(tiles * segments, device.sm_count * resident)
    kernel = dataclasses.replace(kernel, dynamic_shared_bytes=shared_bytes)
    split_k = -(-sharing // tiles)
    return SharedPlan(kernel, BLOCK_ROWS * warps, blocks.cols, tile_n, sharing, split_k, problem.longest)


def _cost(plan: SharedPlan, problem: Problem, device: Device) -> float:
    """About the time of the busiest SM, in bytes that it gets from L2.

    Bytes of W, which come from memory, count twice, and more where few warps wait for them. X is read once for each
    segment of a block. At the end one block reads the fp32 sums of all that share a tile. Few large blocks read X the
    least, many small ones have the least to do at the end.
    """
    warps, tiles = plan.kernel.threads // 32, -(-problem.m // plan.tile_m)
    segments, per_sm = -(-problem.k // plan.tile_k), -(-plan.blocks // device.sm_count)
    units = -(-tiles * segments // plan.blocks) * per_sm
    w_bytes = units * warps * problem.nbytes / (-(-problem.m // BLOCK_ROWS) * segments)
    x_bytes = units * 2 * plan.tile_k * plan.tile_n
    last = (plan.blocks / tiles + 1) * plan.tile_m * plan.tile_n * 4
    return 2 * w_bytes * (0.9 + 0.1 * 16 / (warps * per_sm)) + x_bytes + last


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
