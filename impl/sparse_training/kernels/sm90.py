"""The sm_90a kernels of block-sparse attention."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import torch

from impl.cuda.build import Kernel

BLOCKS = (64, 128)
PADDED_DIMS = (64, 128)
TILE_ROWS = 64
_WARPGROUP = 128  # threads
_REGISTERS_PER_SM = 65536


@dataclass(frozen=True)
class _Layout:
    """Of a block of threads, which fills an SM: `consumers` warpgroups and that of their loading warps, registers of a
    thread of either, `stages` of the rings and, of the kernel for dq, buffers of Q and dout."""

    consumers: int
    consumer_registers: int
    loader_registers: int
    stages: int
    q_stages: int = 1

    def tiles(self, what: str) -> int:
        """Of TILE_ROWS rows in shared memory, for one consumer."""
        if what == "forward":
            return 1 + self.stages
        return 2 * self.stages + (2 * self.q_stages + 1 if what == "backward_dq" else 2)


_LAYOUTS = {
    ("forward", 64): _Layout(4, 112, 32, stages=4),
    ("forward", 128): _Layout(2, 224, 56, stages=4),
    ("backward_dq", 64): _Layout(3, 152, 56, stages=2, q_stages=2),
    ("backward_dq", 128): _Layout(2, 224, 56, stages=2),
    ("backward_dkdv", 64): _Layout(3, 160, 32, stages=3),
    ("backward_dkdv", 128): _Layout(2, 232, 40, stages=2),
}


def parts(block: int) -> int:
    """Works that share a list of a pattern of `block`."""
    return block // TILE_ROWS


def resident_blocks(kernel: Kernel, works: int, device: torch.device) -> int:
    """Blocks of `kernel` for so many works: no more than run at once, one on each multiprocessor."""
    consumers = kernel.threads // _WARPGROUP - 1
    return min(-(-works // consumers), _multiprocessors(device))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@functools.cache
def kernel(what: str, block: int, padded_dim: int, bfloat16: bool) -> Kernel:
    """`what` is "forward", "backward_dq" or "backward_dkdv"; for blocks of `block` and head dims up to `padded_dim`."""
    layout = _LAYOUTS[what, padded_dim]
    threads = _WARPGROUP * (layout.consumers + 1)
    beside_tiles = 2048 if what == "backward_dkdv" else 1024  # barriers, and statistics of the rows
    consumer_bytes = layout.tiles(what) * TILE_ROWS * padded_dim * 2 + beside_tiles
    return Kernel(
        name=f"block_sparse_{what}_sm90a_b{block}_d{padded_dim}_{'bf16' if bfloat16 else 'fp16'}",
        file=Path(__file__).with_name(f"{what}_sm90a.cu"),
        entry=f"block_sparse_{what}_sm90a",
        arch="sm_90a",
        macros=(
            *(("BLOCK", block), ("PADDED_DIM", padded_dim), ("BLOCK_N", TILE_ROWS), ("BFLOAT16", int(bfloat16))),
            *(("CONSUMERS", layout.consumers), ("STAGES", layout.stages), ("Q_STAGES", layout.q_stages)),
            *(("CONSUMER_BYTES", consumer_bytes), ("CONSUMER_REGISTERS", layout.consumer_registers)),
            ("LOADER_REGISTERS", layout.loader_registers),
        ),
        threads=threads,
        dynamic_shared_bytes=layout.consumers * consumer_bytes,
        max_registers=_REGISTERS_PER_SM // threads // 8 * 8,
        min_blocks_per_sm=1,
    )


ALL = tuple(
    kernel(what, block, padded_dim, bfloat16)
    for (what, padded_dim), block in itertools.product(_LAYOUTS, BLOCKS)
    for bfloat16 in ((False, True) if block == 64 else (False,))  # bfloat16 takes the registers that float16 takes
)
