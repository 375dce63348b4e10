"""Expanding a compressed weight on a GPU, where a dense product is the faster one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.flash_llm.formats import FORMATS

_WARPS = 4


def _kernel(kind: str, shared_bytes: int, max_registers: int, min_blocks_per_sm: int) -> Kernel:
    return Kernel(
        name=f"flash_llm_expand_{kind}",
        file=Path(__file__).parent / f"expand_{kind}_sm70.cu",
        entry=f"expand_{kind}",
        arch="sm_70",
        macros=(),
        threads=32 * _WARPS,
        dynamic_shared_bytes=shared_bytes,
        max_registers=max_registers,
        min_blocks_per_sm=min_blocks_per_sm,
    )


EXPAND = {
    "tiled_csl": _kernel("tiled_csl", shared_bytes=16384, max_registers=32, min_blocks_per_sm=5),
    "bitmap": _kernel("bitmap", shared_bytes=0, max_registers=40, min_blocks_per_sm=12),
}
_TILES_PER_BLOCK = {"tiled_csl": 1, "bitmap": _WARPS}


def expand(kind: str, data: Tensor, offsets: Tensor, shape: tuple[int, int], launch: Callable[..., None]) -> Tensor:
    """The dense matrix [m, k] float16 of one in the format `kind` (its data and offsets), by `launch`."""
    m, k = shape
    dense = torch.empty(m, k, dtype=torch.float16, device=data.device)
    tiles_m, tiles_k = FORMATS[kind].grid(m, k)
    blocks = -(-tiles_m * tiles_k // _TILES_PER_BLOCK[kind])
    launch(EXPAND[kind], (blocks, 1, 1), (data, offsets, dense, np.int32(m), np.int32(k)))
    return dense
