"""An op that takes more than one launch: its steps, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap

Arguments = list[Tensor | TensorMap | np.generic]
Launch = Callable[[Kernel, tuple[int, int, int], Sequence[Tensor | TensorMap | np.generic]], None]


@dataclass(frozen=True)
class Step:
    """One launch."""

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: Arguments


def run(steps: Sequence[Step], launch: Launch) -> None:
    """Launches those that have blocks, in order."""
    for step in steps:
        if 0 not in step.grid:
            launch(step.kernel, step.grid, step.arguments)


def strides(*tensors: Tensor) -> list[np.int64]:
    """Batch, head and row stride of each tensor, in elements."""
    return [np.int64(stride) for tensor in tensors for stride in tensor.stride()[:3]]


def rows_aligned(tensor: Tensor) -> bool:
    """Whether all rows of a tensor of 16-bit elements start at multiples of 16 bytes."""
    return tensor.data_ptr() % 16 == 0 and all(s * tensor.itemsize % 16 == 0 for s in tensor.stride()[:-1])
