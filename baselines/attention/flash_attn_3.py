"""FlashAttention-3, forward, from the wheel `fa3-fwd`."""

from __future__ import annotations

import functools

from baselines._attention import SHARED, missing, seqlen_before_heads
from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call


class FlashAttn3(Contender):
    """The wheel is built without the backward and without float16 (its fa3_fwd_config says so)."""

    name = "flash_attn_3"
    op = "attention"
    role = "baseline"
    label = "FlashAttention-3"
    summary = "FlashAttention-3 forward, bfloat16, Hopper, from the wheel fa3-fwd"
    source = "https://pypi.org/project/fa3-fwd/"
    sources = SHARED

    def unavailable(self, target: Target) -> str | None:
        how = "pip install fa3-fwd==0.0.3 nvidia-cuda-runtime --no-deps"
        return missing(target, "fa3_fwd_interface", how)

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.direction == "backward":
            return "the wheel has no backward; build flash-attention/hopper from source for it"
        if params.dtype != "bfloat16":
            return f"the wheel has no {params.dtype}; use a bfloat16 case"
        if params.head_dim % 8 or params.head_dim > 256:
            return f"head_dim {params.head_dim} is no multiple of 8 up to 256; use sdpa_flash"
        if target.capability[0] != 9:
            return f"runs on Hopper (compute capability 9.0) only, {target.name} is another; use sdpa_flash"
        return None

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from fa3_fwd_interface import flash_attn_func

        forward = seqlen_before_heads(functools.partial(flash_attn_func, causal=params.causal))
        return Prepared(attention_call(forward, inputs), backend="library")
