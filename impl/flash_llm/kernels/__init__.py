"""Kernels of Flash-LLM: products by a weight in Tiled-CSL or as a bitmap, the sum of split-K parts, and expansion."""

from __future__ import annotations

from collections.abc import Callable

from impl.flash_llm.kernels import bitmap, bitmap_sm90, tiled_csl
from impl.flash_llm.kernels.bitmap_sm90 import SharedPlan
from impl.flash_llm.kernels.expand import EXPAND
from impl.flash_llm.kernels.plan import REDUCE, Device, Plan, Problem

__all__ = ["KERNELS", "Device", "Plan", "Problem", "choose_plan", "has_kernel"]

KERNELS = (
    *tiled_csl.SPMM.values(),
    *tiled_csl.SPMM_SM70.values(),
    *bitmap.SPMM.values(),
    *bitmap_sm90.SPMM.values(),
    REDUCE,
    *EXPAND.values(),
)
_PLANNERS = {  # by format and the major version of the compute capability that a source is for, newest first
    "tiled_csl": {7: tiled_csl.choose_plan},
    "bitmap": {9: bitmap_sm90.choose_plan, 8: bitmap.choose_plan},
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
