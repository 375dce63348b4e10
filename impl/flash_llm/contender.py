"""Flash-LLM's SpMM, with the weight in Tiled-CSL and in the bitmap format."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from harness.contender import Contender, Prepared, Target
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from harness.ops.spmm import SpMMParams


class _FlashLLM(Contender):
    """What the formats share."""

    op = "spmm"
    role = "ours"
    sources = ("impl/flash_llm", "impl/cuda")
    kind: ClassVar[str]  # of format
    needs: ClassVar[tuple[tuple[int, int], str]]  # compute capability, and what for

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.dtype != "float16":
            return f"the format holds float16 values, not {params.dtype}"
        capability, why = self.needs
        if target.is_cuda and target.capability < capability:
            needed, have = ("".join(map(str, version)) for version in (capability, target.capability))
            return f"the kernel needs sm_{needed} or newer ({why}); this GPU is sm_{have}"
        return None

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.cuda.backend import kernel_fields
        from impl.flash_llm.api import plan_for, spmm
        from impl.flash_llm.choice import choose_format
        from impl.flash_llm.formats import FORMATS
        from impl.flash_llm.kernels import Device

        x = inputs["x"]
        began = _finished(target)
        weight = FORMATS[self.kind].from_dense(inputs["w"])
        conversion_s = _finished(target) - began
        plan = plan_for(weight, x)
        rule = choose_format(int(inputs["w"].count_nonzero()), weight.shape, Device.of(x.device))
        prepared = Prepared(
            run=lambda: {"y": spmm(weight, x)},
            tuning={"split_k": plan.split_k, "format_by_rule": rule.name},
            bytes_floor=weight.nbytes + x.nbytes + params.m * params.n * x.itemsize,
            format_bytes=weight.nbytes,
            conversion_s=conversion_s,
            **kernel_fields(plan.kernels, x.device),
        )
        if prepared.backend != "reference":
            prepared.tuning |= {"tile_m": plan.tile_m, "tile_n": plan.tile_n}
        if prepared.backend == "emulated":
            operands = (weight.data, weight.offsets, x, params.m)
            prepared.run = lambda: {"y": plan.multiply(*operands, emulator.launch)}
        return prepared


def _finished(target: Target) -> float:
    """The time, s, when the device has done all that it was given."""
    import torch

    if target.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


class FlashLLMTiledCSL(_FlashLLM):
    name = "flash_llm_tiled_csl"
    kind = "tiled_csl"
    needs = (7, 0), "Tensor Cores"
    label = "Flash-LLM (Tiled-CSL)"
    summary = "unstructured sparse W streamed compressed, expanded in shared memory, multiplied on Tensor Cores"
    source = "Xia et al., Flash-LLM, PVLDB 17(2), 2023; impl/flash_llm"


class FlashLLMBitmap(_FlashLLM):
    name = "flash_llm_bitmap"
    kind = "bitmap"
    needs = (8, 0), "fragments of mma.m16n8k16"
    label = "Flash-LLM (bitmap)"
    summary = "one bit per element and packed non-zeros, decoded in registers, multiplied on Tensor Cores"
    source = "format and kernel of this project, after SpInfer's idea, EuroSys 2025; impl/flash_llm/README.md"
