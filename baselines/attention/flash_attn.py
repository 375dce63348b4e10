"""FlashAttention-2 from its own package."""

from __future__ import annotations

import functools

from baselines._attention import SHARED, below, missing, seqlen_before_heads
from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call


class FlashAttn(Contender):
    """Without the package, sdpa_flash is the FlashAttention-2 row."""

    name = "flash_attn"
    op = "attention"
    role = "baseline"
    label = "FlashAttention-2"
    summary = "flash-attn 2.x, from its own package"
    source = "https://github.com/Dao-AILab/flash-attention"
    sources = SHARED

    def unavailable(self, target: Target) -> str | None:
        how = "pip install flash-attn --no-build-isolation (compiles with nvcc, PyPI has no wheel), or use sdpa_flash"
        return missing(target, "flash_attn.flash_attn_interface", how)

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.dtype == "float32":
            return "takes float16 and bfloat16 only; choose one of them"
        if params.head_dim > 256:
            return f"head_dim {params.head_dim} is over its limit of 256; use sdpa_efficient"
        return below(target, (8, 0), "FlashAttention-2", "sdpa_efficient")

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from flash_attn.flash_attn_interface import flash_attn_func

        forward = seqlen_before_heads(functools.partial(flash_attn_func, causal=params.causal))
        return Prepared(attention_call(forward, inputs), backend="library")
