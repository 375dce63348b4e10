"""What every product by a compressed weight shares: how it is cut into blocks, its launch, and the sum of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel

MAX_GRID_Y = 65535
REDUCE = Kernel(
    name="flash_llm_split_k_reduce",
    file=Path(__file__).parent / "split_k_reduce_sm70.cu",
    entry="split_k_reduce",
    arch="sm_70",
    macros=(),
    threads=256,
    dynamic_shared_bytes=0,
    max_registers=32,
    min_blocks_per_sm=8,
)


@dataclass(frozen=True)
class Device:
    """What a plan needs to know of a GPU: its compute capability, SMs, and the bytes of shared memory of an SM and at
    most of a block."""

    capability: tuple[int, int]
    sm_count: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int

    @classmethod
    @functools.cache
    def of(cls, device: torch.device) -> Device:
        """A GPU; for a CPU one SM of an A100, which is what the kernels are emulated as."""
        if device.type != "cuda":
            return cls((8, 0), 1, 167936, 166912)
        gpu = torch.cuda.get_device_properties(device)
        shared_bytes = gpu.shared_memory_per_multiprocessor, gpu.shared_memory_per_block_optin
        return cls((gpu.major, gpu.minor), gpu.multi_processor_count, *shared_bytes)


@dataclass(frozen=True)
class Problem:
    """Y[m, n] = W[m, k] X[k, n]; `nbytes` of W as it is stored, and the units of its `longest` tile."""

    m: int
    n: int
    k: int
    nbytes: int
    longest: int


@dataclass(frozen=True)
class Plan:
    """How one multiplication is cut: rows and columns of Y per block, and parts of k. `extra` arguments of the kernel
    follow the sizes."""

    kernel: Kernel
    tile_m: int
    tile_n: int
    split_k: int
    extra: tuple[np.int32, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is launched, in order."""
        return (self.kernel,) if self.split_k == 1 else (self.kernel, REDUCE)

    def multiply(self, data: Tensor, offsets: Tensor, x: Tensor, m: int, launch: Callable[..., None]) -> Tensor:
        """Y [m, n] float16 of a compressed matrix (its data and offsets) and x [k, n] float16, by `launch`.

        `launch(kernel, grid, arguments)` is `impl.cuda.launch.launch`, or the emulator's. x's columns are adjacent;
        its rows may be any distance apart. Neither Y nor the partial sums [split_k, m, n] are initialised.
        """
        k, n = x.shape
        whole = self.split_k == 1
        shape, dtype = ((m, n), torch.float16) if whole else ((self.split_k, m, n), torch.float32)
        out = torch.empty(shape, dtype=dtype, device=x.device)
        grid = (-(-m // self.tile_m) * -(-n // self.tile_n), self.split_k, 1)
        sizes = (np.int32(m), np.int32(n), np.int32(k), np.int64(x.stride(0)))
        launch(self.kernel, grid, (data, offsets, x, out, *sizes, *self.extra))
        return out if whole else _sum_parts(out, launch)


def aligned_rows(x: Tensor) -> Tensor:
    """A copy of x [k, n] float16 whose rows begin at multiples of 16 bytes, columns adjacent."""
    k, n = x.shape
    return x.new_empty(k, -(-n // 8) * 8)[:, :n].copy_(x)


def _sum_parts(partials: Tensor, launch: Callable[..., None]) -> Tensor:
    """The sum [m, n] float16 of partial sums [split_k, m, n] float32, in order."""
    split_k, m, n = partials.shape
    y = torch.empty(m, n, dtype=torch.float16, device=partials.device)
    blocks = -(-y.numel() // REDUCE.threads)
    launch(REDUCE, (blocks, 1, 1), (partials, y, np.int64(y.numel()), np.int32(split_k)))
    return y


def choose_split_k(
    problem: Problem,
    tile: tuple[int, int],
    steps: int,
    step_bytes: int,
    fill_steps: int,
    slots: int,
    wanted: int | None,
) -> int:
    """Parts of k that move the fewest bytes in a machine with room for `slots` blocks of `tile` rows and columns of Y.

    A block takes `steps` steps of `step_bytes` along the whole of k, and waits for `fill_steps` more. The slots are
    taken to stream at one rate whether a block sits in them or not, so waves that are not full and steps that fill
    the pipeline cost like full ones; fp32 partial sums are written and read once. `wanted` overrides the choice: 1 to
    `steps`. Raises ValueError beyond that.
    """
    blocks = -(-problem.m // tile[0]) * -(-problem.n // tile[1])
    limit = min(steps, MAX_GRID_Y)
    check_split_k(wanted, limit, problem.k)
    if wanted is not None:
        return wanted

    def cost(split_k: int) -> int:
        waves = -(-blocks * split_k // slots)
        longest = -(-steps // split_k) + fill_steps
        partials = 8 * problem.m * problem.n * split_k if split_k > 1 else 0
        return waves * longest * slots * step_bytes + partials

    return min(range(1, limit + 1), key=cost)


def check_split_k(split_k: int | None, limit: int, k: int) -> None:
    """Raises ValueError for parts of k that are not 1 to `limit`."""
    if split_k is not None and not 1 <= split_k <= limit:
        raise ValueError(f"split_k={split_k} must be 1 to {limit} for k={k}: every part takes a tile of W")
