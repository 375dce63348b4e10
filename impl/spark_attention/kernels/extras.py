"""A mask and dropout on their way to a kernel: what it is compiled with, and its last arguments (extras.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from impl.spark_attention.extras import Extras

_MASKS = {None: (0, ""), torch.bool: (1, "_boolmask"), torch.float32: (3, "_mask32")}
_MASK_AS_INPUTS = (2, "_mask16")


@dataclass(frozen=True)
class Features:
    """What a kernel can do beside plain attention: `mask_type` is that of the mask's elements, None without one."""

    mask_type: torch.dtype | None = None
    dropout: bool = False

    @property
    def macros(self) -> tuple[tuple[str, int], ...]:
        return ("MASK", _MASKS.get(self.mask_type, _MASK_AS_INPUTS)[0]), ("DROPOUT", int(self.dropout))

    @property
    def suffix(self) -> str:
        """For the kernel's name."""
        return _MASKS.get(self.mask_type, _MASK_AS_INPUTS)[1] + ("_dropout" if self.dropout else "")

    def __bool__(self) -> bool:
        return self != PLAIN


PLAIN = Features()
REPORTED = Features(torch.bool, dropout=True)  # of the many, what the build rule compiles: both at once


def features_of(extras: Extras) -> Features:
    """What a kernel needs for `extras`."""
    return Features(None if extras.mask is None else extras.mask.dtype, extras.dropout_p > 0)


def extra_arguments(extras: Extras, first_batch: int = 0) -> list[torch.Tensor | np.generic]:
    """The kernel's arguments in the order of EXTRA_PARAMETERS, for a launch of the sequences from `first_batch` on."""
    arguments = []
    if extras.mask is not None:
        mask = extras.mask[first_batch:]
        arguments += [mask, *map(np.int64, mask.stride()[:3])]
    if extras.dropout_p > 0:
        arguments += [extras.seed, np.int32(first_batch), np.int32(extras.dropped), np.float32(extras.keep_scale)]
    return arguments
