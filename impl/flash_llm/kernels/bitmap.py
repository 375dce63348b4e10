"""Launching the bitmap kernel: its specialisations, what fits in shared memory, and how k is split."""

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
from impl.flash_llm.bitmap import BLOCK_COLS, BLOCK_ROWS, LANES, block_grid
from impl.flash_llm.kernels.tiled_csl import REDUCE, sum_parts

_MAX_GRID_Y = 65535
_STAGES = 2
_LINE_BYTES = 4 * LANES
_BLOCK_OVERHEAD = 1024  # bytes of shared memory that the system takes from each block
_REGISTERS = 65536  # of an SM
_FILL_SEGMENTS = 1  # segments that a block waits for before the first one it multiplies
_NOMINAL_LINES = 48  # of the densest block, about 80 % zeros: what KERNELS and their reports show
_WARPS = (4, 8)


def _shared_bytes(tile_n: int, warps: int, stage_lines: int) -> int:
    return _STAGES * (2 * BLOCK_COLS * tile_n + warps * stage_lines * _LINE_BYTES)


def _spmm_kernel(tile_n: int, warps: int, max_registers: int) -> Kernel:
    return Kernel(
        name=f"flash_llm_bitmap_n{tile_n}_w{warps}",
        file=Path(__file__).parent / "bitmap_sm80.cu",
        entry="bitmap_spmm",
        arch="sm_80",
        macros=(("TILE_N", tile_n), ("WARPS", warps), ("MIN_BLOCKS_PER_SM", 1), ("STAGES", _STAGES), ("UNROLL", 1)),
        threads=32 * warps,
        dynamic_shared_bytes=_shared_bytes(tile_n, warps, _NOMINAL_LINES),
        max_registers=max_registers,
        min_blocks_per_sm=1,
    )


_MAX_REGISTERS = {8: 96, 16: 96, 32: 128, 64: 168}  # by the width of the tile
SPMM = {
    (tile_n, warps): _spmm_kernel(tile_n, warps, registers)
    for tile_n, registers in _MAX_REGISTERS.items()
    for warps in _WARPS
}


@dataclass(frozen=True)
class Device:
    """What the plan needs to know of a GPU: SMs, and the bytes of shared memory of one SM and at most of a block."""

    sm_count: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int

    @classmethod
    def of(cls, x: Tensor) -> Device:
        """The GPU that `x` is on; on a CPU one SM of an A100, which is what the sm_80 source is emulated as."""
        if not x.is_cuda:
            return cls(1, 167936, 166912)
        gpu = torch.cuda.get_device_properties(x.device)
        return cls(gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor, gpu.shared_memory_per_block_optin)


@dataclass(frozen=True)
class Plan:
    """How one multiplication is cut: columns of Y and warps per block, parts of k, lines of W per stage of a warp."""

    tile_n: int
    warps: int
    split_k: int
    stage_lines: int

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is launched, in order."""
        kernel = SPMM[self.tile_n, self.warps]
        shared_bytes = _shared_bytes(self.tile_n, self.warps, self.stage_lines)
        spmm = dataclasses.replace(kernel, dynamic_shared_bytes=shared_bytes)
        return (spmm,) if self.split_k == 1 else (spmm, REDUCE)


@functools.cache
def choose_plan(m: int, n: int, k: int, nbytes: int, densest: int, device: Device, split_k: int | None = None) -> Plan:
    """The plan for Y[m, n] = W[m, k] X[k, n] with a W of `nbytes` and `densest` lines in its longest block.

    The narrowest tile that holds n, or the widest, of those whose stages fit in shared memory; of 4 or 8 warps
    the number that puts more on an SM, and when both put the same, 8, which read X half as often. `split_k`
    overrides the choice; it may be 1 to the number of 256-wide segments in k. Raises ValueError beyond that, and
    when the densest block fits in no tile.
    """
    widths = [width for width in _MAX_REGISTERS if resident_blocks(width, min(_WARPS), densest, device)]
    if not widths:
        raise ValueError(
            f"a block of W has {densest} lines; {_STAGES} stages of them take "
            f"{_shared_bytes(min(_MAX_REGISTERS), min(_WARPS), densest)} bytes of shared memory, and a block here has "
            f"{device.shared_bytes_per_block}"
        )
    tile_n = next((width for width in widths if width >= n), max(widths))
    resident = {warps: resident_blocks(tile_n, warps, densest, device) for warps in _WARPS}
    useful = [warps for warps in _WARPS if warps == min(_WARPS) or m > BLOCK_ROWS * min(_WARPS)]
    warps = max(useful, key=lambda warps: (warps * resident[warps], warps))
    limit = min(block_grid(m, k)[1], _MAX_GRID_Y)
    if split_k is None:
        split_k = _choose_split_k(m, n, k, tile_n, warps, nbytes, device.sm_count * resident[warps], limit)
    if not 1 <= split_k <= limit:
        raise ValueError(f"split_k={split_k} must be 1 to {limit} for k={k}: every part takes at least one segment")
    return Plan(tile_n, warps, split_k, densest)


def resident_blocks(tile_n: int, warps: int, densest: int, device: Device) -> int:
    """Blocks on one SM at once, by shared memory and registers; 0 when not even one fits."""
    shared_bytes = _shared_bytes(tile_n, warps, densest)
    if shared_bytes > device.shared_bytes_per_block:
        return 0
    by_shared = device.shared_bytes_per_sm // (shared_bytes + _BLOCK_OVERHEAD)
    return min(by_shared, _REGISTERS // (_MAX_REGISTERS[tile_n] * 32 * warps))


def _choose_split_k(m: int, n: int, k: int, tile_n: int, warps: int, nbytes: int, slots: int, limit: int) -> int:
    """Parts of k that move the fewest bytes in a machine with room for `slots` blocks.

    As for Tiled-CSL, but with the weight's own bytes: the slots stream at one rate whether a block sits in them or
    not, and fp32 partial sums are written and read once.
    """
    segments = block_grid(m, k)[1]
    rows = -(-m // (BLOCK_ROWS * warps))
    segment_bytes = nbytes // (rows * segments)

    def cost(split_k: int) -> int:
        waves = -(-rows * -(-n // tile_n) * split_k // slots)
        steps = -(-segments // split_k) + _FILL_SEGMENTS
        partials = 8 * m * n * split_k if split_k > 1 else 0
        return waves * steps * slots * segment_bytes + partials

    return min(range(1, limit + 1), key=cost)


def multiply(lines: Tensor, offsets: Tensor, x: Tensor, m: int, plan: Plan, launch: Callable[..., None]) -> Tensor:
    """Y [m, n] float16 of a matrix in the bitmap format (its lines and offsets) and x [k, n] float16, by `launch`.

    `launch(kernel, grid, arguments)` is `impl.cuda.launch.launch`, or the emulator's. x's columns are adjacent;
    its rows may be any distance apart. Neither Y nor the partial sums [split_k, m, n] are initialised.
    """
    k, n = x.shape
    shape = (m, n) if plan.split_k == 1 else (plan.split_k, m, n)
    out = torch.empty(shape, dtype=torch.float16 if plan.split_k == 1 else torch.float32, device=x.device)
    grid = (-(-m // (BLOCK_ROWS * plan.warps)) * -(-n // plan.tile_n), plan.split_k, 1)
    sizes = (np.int32(m), np.int32(n), np.int32(k), np.int64(x.stride(0)), np.int32(plan.stage_lines))
    launch(plan.kernels[0], grid, (lines, offsets, x, out, *sizes))
    return out if plan.split_k == 1 else sum_parts(out, launch)
