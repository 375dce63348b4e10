"""Launching the Tiled-CSL kernel: its specialisations, how k is split, and the sum of the parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.flash_llm.formats import TILE_COLS, TILE_ROWS, tile_grid

_FOLDER = Path(__file__).parent
_MAX_GRID_Y = 65535
_TILE_BYTES = 8192  # entries of a tile a quarter full: the model of `_choose_split_k` knows no weights
_FILL_STEPS = 2  # steps of the pipeline that a block spends before and after its own


def _spmm_kernel(tile_n: int, min_blocks_per_sm: int, max_registers: int) -> Kernel:
    return Kernel(
        name=f"flash_llm_tiled_csl_n{tile_n}",
        file=_FOLDER / "tiled_csl_sm80.cu",
        entry="tiled_csl_spmm",
        arch="sm_80",
        macros=(("WARPS", 4), ("TILE_N", tile_n), ("MIN_BLOCKS_PER_SM", min_blocks_per_sm)),
        threads=128,
        dynamic_shared_bytes=2 * 2 * TILE_COLS * (TILE_ROWS + tile_n),  # two stages of two bytes
        max_registers=max_registers,
        min_blocks_per_sm=min_blocks_per_sm,
    )


# 64 columns take 96 KiB in two blocks of sm_80, 144 KiB in three, which leaves no room for a fourth.
SPMM = {
    8: _spmm_kernel(8, min_blocks_per_sm=4, max_registers=128),
    16: _spmm_kernel(16, min_blocks_per_sm=4, max_registers=128),
    32: _spmm_kernel(32, min_blocks_per_sm=4, max_registers=128),
    64: _spmm_kernel(64, min_blocks_per_sm=3, max_registers=168),
}
REDUCE = Kernel(
    name="flash_llm_split_k_reduce",
    file=_FOLDER / "split_k_reduce_sm70.cu",
    entry="split_k_reduce",
    arch="sm_70",
    macros=(),
    threads=256,
    dynamic_shared_bytes=0,
    max_registers=32,
    min_blocks_per_sm=8,
)


@dataclass(frozen=True)
class Plan:
    """How one multiplication is cut: columns of Y per block, and parts of k."""

    tile_n: int
    split_k: int

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is launched, in order."""
        return (SPMM[self.tile_n],) if self.split_k == 1 else (SPMM[self.tile_n], REDUCE)


@functools.cache
def choose_plan(m: int, n: int, k: int, sm_count: int, split_k: int | None = None) -> Plan:
    """The plan for Y[m, n] = W[m, k] X[k, n] on `sm_count` SMs, a function of these numbers alone.

    The narrowest tile that holds n, or the widest. `split_k` overrides the choice; it may be 1 to the number
    of 64-wide steps in k. Raises ValueError beyond that.
    """
    tile_n = next((width for width in SPMM if width >= n), max(SPMM))
    limit = min(tile_grid(m, k)[1], _MAX_GRID_Y)
    if split_k is None:
        split_k = _choose_split_k(m, n, k, tile_n, sm_count * SPMM[tile_n].min_blocks_per_sm, limit)
    if not 1 <= split_k <= limit:
        raise ValueError(f"split_k={split_k} must be 1 to {limit} for k={k}: every part takes at least one tile")
    return Plan(tile_n, split_k)


def _choose_split_k(m: int, n: int, k: int, tile_n: int, slots: int, limit: int) -> int:
    """Parts of k that move the fewest bytes in a machine with room for `slots` blocks.

    The slots are taken to stream at one rate whether a block sits in them or not, so waves that are not full
    and steps that fill the pipeline cost like full ones; fp32 partial sums are written and read once.
    """
    tiles_m, tiles_k = tile_grid(m, k)
    blocks = tiles_m * -(-n // tile_n)

    def cost(split_k: int) -> int:
        waves = -(-blocks * split_k // slots)
        steps = -(-tiles_k // split_k) + _FILL_STEPS
        partials = 8 * m * n * split_k if split_k > 1 else 0
        return waves * steps * slots * _TILE_BYTES + partials

    return min(range(1, limit + 1), key=cost)


def multiply(entries: Tensor, offsets: Tensor, x: Tensor, m: int, plan: Plan, launch: Callable[..., None]) -> Tensor:
    """Y [m, n] float16 of a matrix in Tiled-CSL (its entries and offsets) and x [k, n] float16, by `launch`.

    `launch(kernel, grid, arguments)` is `impl.cuda.launch.launch`, or the emulator's. x's columns are adjacent;
    its rows may be any distance apart. Neither Y nor the partial sums [split_k, m, n] are initialised.
    """
    k, n = x.shape
    shape = (m, n) if plan.split_k == 1 else (plan.split_k, m, n)
    out = torch.empty(shape, dtype=torch.float16 if plan.split_k == 1 else torch.float32, device=x.device)
    grid = (tile_grid(m, k)[0] * -(-n // plan.tile_n), plan.split_k, 1)
    sizes = (np.int32(m), np.int32(n), np.int32(k), np.int64(x.stride(0)))
    launch(SPMM[plan.tile_n], grid, (entries, offsets, x, out, *sizes))
    return out if plan.split_k == 1 else sum_parts(out, launch)


def sum_parts(partials: Tensor, launch: Callable[..., None]) -> Tensor:
    """The sum [m, n] float16 of partial sums [split_k, m, n] float32, in order."""
    split_k, m, n = partials.shape
    y = torch.empty(m, n, dtype=torch.float16, device=partials.device)
    blocks = -(-y.numel() // REDUCE.threads)
    launch(REDUCE, (blocks, 1, 1), (partials, y, np.int64(y.numel()), np.int32(split_k)))
    return y
