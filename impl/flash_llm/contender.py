"""Flash-LLM's SpMM, with the weight in Tiled-CSL and in the bitmap format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contender import Contender, Prepared, Target
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from harness.ops.spmm import SpMMParams


class _FlashLLM(Contender):
    """What the formats share."""

    op = "spmm"
    role = "ours"
    sources = ("impl/flash_llm", "impl/cuda")

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.dtype != "float16":
            return f"the format holds float16 values, not {params.dtype}"
        if target.is_cuda and target.capability < (8, 0):
            major, minor = target.capability
            return f"the kernel needs sm_80 or newer (cp.async, mma.m16n8k16); this GPU is sm_{major}{minor}"
        return None


class FlashLLMTiledCSL(_FlashLLM):
    name = "flash_llm_tiled_csl"
    label = "Flash-LLM (Tiled-CSL)"
    summary = "unstructured sparse W streamed compressed, expanded in shared memory, multiplied on Tensor Cores"
    source = "Xia et al., Flash-LLM, PVLDB 17(2), 2023; impl/flash_llm"

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.cuda.backend import kernel_fields
        from impl.flash_llm.api import flash_llm_spmm, plan_for
        from impl.flash_llm.formats import TiledCSL
        from impl.flash_llm.kernels.tiled_csl import multiply

        x = inputs["x"]
        weight = TiledCSL.from_dense(inputs["w"])
        plan = plan_for(weight.shape[0], x)
        prepared = Prepared(
            run=lambda: {"y": flash_llm_spmm(weight, x, plan.split_k)},
            tuning={"split_k": plan.split_k},
            bytes_floor=weight.nbytes + x.nbytes + params.m * params.n * x.itemsize,
            format_bytes=weight.nbytes,
            **kernel_fields(plan.kernels, x.device),
        )
        if prepared.backend != "reference":
            prepared.tuning["tile_n"] = plan.tile_n
        if prepared.backend == "emulated":
            prepared.run = lambda: {"y": multiply(weight.entries, weight.offsets, x, params.m, plan, emulator.launch)}
        return prepared


class FlashLLMBitmap(_FlashLLM):
    name = "flash_llm_bitmap"
    label = "Flash-LLM (bitmap)"
    summary = "one bit per element and packed non-zeros, decoded in registers, multiplied on Tensor Cores"
    source = "format and kernel of this project, after SpInfer's idea, EuroSys 2025; impl/flash_llm/README.md"

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.cuda.backend import kernel_fields
        from impl.flash_llm import reference
        from impl.flash_llm.bitmap import Bitmap
        from impl.flash_llm.kernels import bitmap

        x = inputs["x"]
        weight = Bitmap.from_dense(inputs["w"])
        shape = (params.m, params.n, params.k)
        plan = bitmap.choose_plan(*shape, weight.nbytes, weight.densest, bitmap.Device.of(x))
        prepared = Prepared(
            run=lambda: {"y": reference.spmm_bitmap(weight.lines, weight.offsets, x, params.m, plan.split_k)},
            tuning={"split_k": plan.split_k},
            bytes_floor=weight.nbytes + x.nbytes + params.m * params.n * x.itemsize,
            format_bytes=weight.nbytes,
            **kernel_fields(plan.kernels, x.device),
        )
        if prepared.backend == "reference":
            return prepared
        if prepared.backend == "kernel":
            from impl.cuda.launch import launch
        else:
            launch = emulator.launch
        prepared.run = lambda: {"y": bitmap.multiply(weight.lines, weight.offsets, x, params.m, plan, launch)}
        prepared.tuning |= {"tile_n": plan.tile_n, "warps": plan.warps, "stage_lines": plan.stage_lines}
        return prepared
