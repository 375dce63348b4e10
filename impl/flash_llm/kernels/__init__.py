"""Kernels of Flash-LLM: products by a weight in each format, the sum of split-K parts, and expansion."""

from __future__ import annotations

import functools
from collections.abc import Callable

from impl.flash_llm.kernels import along_k, equal_shares, tiled_csl
from impl.flash_llm.kernels.convert import CONVERT, MEASURE
from impl.flash_llm.kernels.equal_shares import SharedPlan
from impl.flash_llm.kernels.expand import EXPAND
from impl.flash_llm.kernels.plan import REDUCE, Device, Plan, Problem
from impl.flash_llm.kernels.warp_blocks import BITMAP, TWO_OF_FOUR

__all__ = ["KERNELS", "Device", "Plan", "Problem", "choose_plan", "has_kernel"]

KERNELS = (
    *tiled_csl.SPMM.values(),
    *tiled_csl.SPMM_SM70.values(),
    *along_k.SPMM.values(),
    *(kernel for widths in equal_shares.SPMM.values() for kernels in widths.values() for kernel in kernels),
    REDUCE,
    *EXPAND.values(),
    MEASURE,
    CONVERT,
)
_PLANNERS = {  # by format and the major version of the compute capability that a source is for, newest first
    "tiled_csl": {7: tiled_csl.choose_plan},
    **{
        blocks.kind: {
            9: functools.partial(equal_shares.choose_plan, blocks),
            8: functools.partial(along_k.choose_plan, blocks),
        }
        for blocks in (BITMAP, TWO_OF_FOUR)
    },
}
_ONLY = {9}  # sm_90a runs on no other architecture


def has_kernel(kind: str, device: Device) -> bool:
    """Whether `device` multiplies by a weight in the format `kind`."""
    return _planner(kind, device) is not None


def choose_plan(kind: str, problem: Problem, device: Device, split_k: int | None = None) -> Plan | SharedPlan:
    """The plan of a product by a weight in the format `kind`, by the newest source that `device` runs.

    Raises NotImplementedError when there is none, and ValueError as the format's planner does.
    """
    if planner := _planner(kind, device):
        return planner(problem, device, split_k)
    oldest = min(_PLANNERS[kind])
    gpu = "".join(map(str, device.capability))
    raise NotImplementedError(f"the {kind} kernel needs sm_{oldest}0 or newer; this GPU is sm_{gpu}")


def _planner(kind: str, device: Device) -> Callable[..., Plan | SharedPlan] | None:
    have = device.capability[0]
    usable = (plan for major, plan in _PLANNERS[kind].items() if have == major or (have > major and major not in _ONLY))
    return next(usable, None)
