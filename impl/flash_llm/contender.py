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
        from impl.flash_llm.api import flash_llm_spmm, plan_for
        from impl.flash_llm.formats import TiledCSL

        x = inputs["x"]
        weight = TiledCSL.from_dense(inputs["w"])
        plan = plan_for(weight.shape[0], x)
        prepared = Prepared(
            run=lambda: {"y": flash_llm_spmm(weight, x, plan.split_k)},
            backend="reference",
            tuning={"split_k": plan.split_k},
            bytes_floor=weight.nbytes + x.nbytes + params.m * params.n * x.itemsize,
            format_bytes=weight.nbytes,
        )
        if target.is_cuda:
            from impl.cuda.build import build
            from impl.cuda.launch import device_arch

            prepared.backend = "kernel"
            prepared.kernel_arch = plan.kernels[0].arch
            prepared.built_arch = device_arch(x.device.index)
            prepared.kernel_hash, *_ = [build(kernel, prepared.built_arch).hash for kernel in plan.kernels]
            prepared.tuning["tile_n"] = plan.tile_n
        return prepared
