"""xFormers' memory_efficient_attention, held to its CUTLASS op: the one that runs on Volta."""

from __future__ import annotations

import functools

from baselines._attention import SHARED, missing, seqlen_before_heads
from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call


class Xformers(Contender):
    """From 0.0.29 on this op calls PyTorch's kernel: the record's note says so."""

    name = "xformers"
    op = "attention"
    role = "baseline"
    label = "xFormers CUTLASS"
    summary = "xFormers memory-efficient attention, CUTLASS op"
    source = "https://github.com/facebookresearch/xformers"
    sources = SHARED

    def unavailable(self, target: Target) -> str | None:
        return missing(target, "xformers.ops", "pip install xformers==0.0.35 nvidia-cuda-runtime-cu12 --no-deps")

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        from xformers.ops import fmha

        if params.num_heads != params.num_heads_kv:
            return "takes grouped heads only expanded; use num_heads_kv = num_heads or flash_attn"
        if params.head_dim % 8:
            return f"head_dim {params.head_dim} is no multiple of 8; pad it or use sdpa_math"
        ops = [fmha.cutlass.FwOp] if params.direction == "forward" else [fmha.cutlass.FwOp, fmha.cutlass.BwOp]
        for op in ops:
            if not op.is_available():
                return f"{op.NAME} was not built for this torch; install the xformers release that names it"
            if target.capability > op.CUDA_MAXIMUM_COMPUTE_CAPABILITY:
                newest = ".".join(map(str, op.CUDA_MAXIMUM_COMPUTE_CAPABILITY))
                return f"{op.NAME} runs up to compute capability {newest}; use sdpa_cudnn"
        return None

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from xformers.ops import fmha, memory_efficient_attention
        from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

        forward = functools.partial(
            memory_efficient_attention,
            attn_bias=LowerTriangularFromBottomRightMask() if params.causal else None,
            op=(fmha.cutlass.FwOp, fmha.cutlass.BwOp),
        )
        run = attention_call(seqlen_before_heads(forward), inputs)
        name = fmha.cutlass.FwOp.NAME
        note = "the same kernel as sdpa_efficient" if name.endswith("-pt") else None
        return Prepared(run, backend="library", variant=name, note=note)
