"""The kernels that can be modelled, each listed by its system, and their memory traffic as the emulator counts it."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impl.cuda.build import Kernel

_IMPL = Path(__file__).resolve().parents[2]
_SECTOR_BYTES = 32

Access = tuple[str, int]  # the emulator's name of an instruction, bytes of a lane


@dataclass(frozen=True)
class Modelled:
    """A kernel that can be modelled.

    tensor_flops: of a warp's Tensor-Core instructions in a pass of its main loop. case: values by column of the records
    that the estimate can be compared with. grid: how many blocks the launch of such a record has, and passes each of
    them; None where only the loop is modelled.
    """

    case: Mapping[str, Any]
    kernel: Kernel
    tensor_flops: int
    grid: Callable[[Mapping[str, Any]], tuple[int, int]] | None = None


def all_modelled() -> list[Modelled]:
    """The MODELLED of every `impl/<system>/kernels/modelled.py`."""
    systems = sorted(path.parent.parent.name for path in _IMPL.glob("*/kernels/modelled.py"))
    return [m for system in systems for m in importlib.import_module(f"impl.{system}.kernels.modelled").MODELLED]


@functools.cache
def count_traffic() -> dict[str, dict[Access, float]]:
    """By kernel: wavefronts of shared memory, or bytes from or to L2, of one warp instruction of each kind.

    Raises BuildError where there is no g++.
    """
    from impl.cuda.emulator.table import table

    traffic: dict[str, dict[Access, float]] = defaultdict(dict)
    for row in table().itertuples():
        amount = row.wavefronts + row.sectors * _SECTOR_BYTES
        if amount:
            traffic[row.kernel][row.instruction, row.bytes] = amount / row.instructions
    return dict(traffic)
