"""Planning the Tiled-CSL product: its specialisations, and how it is cut."""

from __future__ import annotations

import functools
from pathlib import Path

from impl.cuda.build import Kernel
from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS, TiledCSL
from impl.flash_llm.kernels.plan import Device, Plan, Problem, choose_split_k

_TILE_BYTES = 8192  # entries of a tile a quarter full: the choice of split_k knows no weights
_FILL_STEPS = 2  # steps of the pipeline that a block spends before and after its own


def _spmm_kernel(tile_n: int, min_blocks_per_sm: int, max_registers: int, arch: str = "sm_80") -> Kernel:
    suffix = "" if arch == "sm_80" else "_sm70"
    return Kernel(
        name=f"flash_llm_tiled_csl{suffix}_n{tile_n}",
        file=Path(__file__).parent / f"tiled_csl_{arch.replace('_', '')}.cu",
        entry=f"tiled_csl_spmm{suffix}",
        arch=arch,
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

# Two blocks are what 96 KiB of shared memory hold.
SPMM_SM70 = {
    8: _spmm_kernel(8, min_blocks_per_sm=2, max_registers=168, arch="sm_70"),
    16: _spmm_kernel(16, min_blocks_per_sm=2, max_registers=168, arch="sm_70"),
    32: _spmm_kernel(32, min_blocks_per_sm=2, max_registers=168, arch="sm_70"),
    64: _spmm_kernel(64, min_blocks_per_sm=2, max_registers=232, arch="sm_70"),
}


@functools.cache
def choose_plan(problem: Problem, device: Device, split_k: int | None = None) -> Plan:
    """The plan of a product on `device`: the narrowest tile that holds n, or the widest.

    `split_k` overrides the choice; it may be 1 to the number of 64-wide steps in k. Raises ValueError beyond that.
    """
    kernels = SPMM if device.capability >= (8, 0) else SPMM_SM70
    tile_n = next((width for width in kernels if width >= problem.n), max(kernels))
    kernel = kernels[tile_n]
    tile = (TILE_ROWS, tile_n)
    steps = TiledCSL.grid(problem.m, problem.k)[1]
    slots = device.sm_count * kernel.min_blocks_per_sm
    return Plan(kernel, *tile, choose_split_k(problem, tile, steps, _TILE_BYTES, _FILL_STEPS, slots, split_k))
