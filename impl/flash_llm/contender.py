"""Flash-LLM's SpMM with the weight in Tiled-CSL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contender import Contender, Prepared, Target
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from harness.ops.spmm import SpMMParams


class FlashLLMTiledCSL(Contender):
    name = "flash_llm_tiled_csl"
    op = "spmm"
    role = "ours"
    label = "Flash-LLM (Tiled-CSL)"
    summary = "unstructured sparse W streamed compressed, expanded in shared memory, multiplied on Tensor Cores"
    source = "Xia et al., Flash-LLM, PVLDB 17(2), 2023; impl/flash_llm"
    sources = ("impl/flash_llm", "impl/cuda")

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.dtype != "float16":
            return f"Tiled-CSL holds float16 values, not {params.dtype}"
        if target.is_cuda and target.capability < (8, 0):
            major, minor = target.capability
            return f"the kernel needs sm_80 or newer (cp.async, mma.m16n8k16); this GPU is sm_{major}{minor}"
        return None

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
