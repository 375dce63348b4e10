"""Kernels of Flash-LLM: products by a weight in Tiled-CSL or as a bitmap, the sum of split-K parts, and expansion."""

from __future__ import annotations

from impl.flash_llm.kernels import bitmap, tiled_csl
from impl.flash_llm.kernels.expand import EXPAND
from impl.flash_llm.kernels.plan import REDUCE, Device, Plan, Problem

__all__ = ["KERNELS", "Device", "Plan", "Problem", "choose_plan"]

KERNELS = (*tiled_csl.SPMM.values(), *bitmap.SPMM.values(), REDUCE, *EXPAND.values())
_PLANNERS = {  # by format, newest source first: the compute capability it needs, and what plans it
    "tiled_csl": (((8, 0), tiled_csl.choose_plan),),
    "bitmap": (((8, 0), bitmap.choose_plan),),
}


def choose_plan(kind: str, problem: Problem, device: Device, split_k: int | None = None) -> Plan:
    """The plan of a product by a weight in the format `kind`, by the newest source that `device` runs.

    Raises NotImplementedError when there is none, and ValueError as the format's planner does.
    """
    for needed, plan in _PLANNERS[kind]:
        if device.capability >= needed:
            return plan(problem, device, split_k)
    major, minor = _PLANNERS[kind][-1][0]
    have = "".join(map(str, device.capability))
    raise NotImplementedError(f"the {kind} kernel needs sm_{major}{minor} or newer; this GPU is sm_{have}")
