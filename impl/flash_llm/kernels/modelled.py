"""The Tiled-CSL kernels that the throughput model takes: a pass is a tile of W that is half full, as in `HELD`.

The records that are nearest to that are those at 60 % zeros.
"""

from __future__ import annotations

from impl.cuda.model.modelled import Modelled
from impl.flash_llm.formats.tiled_csl import TILE_COLS, TILE_ROWS
from impl.flash_llm.kernels import tiled_csl

_FLOPS = 2  # of a multiply-add

# Of sm_80 not the widest tile, whose products are a loop within the main loop.
MODELLED = tuple(
    Modelled(
        {"op": "spmm", "contender": "flash_llm_tiled_csl", "n": tile_n, "sparsity": 0.6},
        kernel,
        _FLOPS * TILE_ROWS * TILE_COLS * tile_n * 32 // kernel.threads,
    )
    for kernels in (tiled_csl.SPMM_SM70, tiled_csl.SPMM)
    for tile_n, kernel in kernels.items()
    if kernel.arch == "sm_70" or tile_n < 64
)
