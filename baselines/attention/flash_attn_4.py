"""FlashAttention-4, written in CuTe DSL and compiled on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED, below, missing, seqlen_before_heads
from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call

if TYPE_CHECKING:
    from torch import Tensor


class FlashAttn4(Contender):
    """Set-up includes the compilation of the case's kernels."""

    name = "flash_attn_4"
    op = "attention"
    role = "baseline"
    label = "FlashAttention-4"
    summary = "FlashAttention-4 (CuTe DSL), from the pre-release flash-attn-4"
    source = "https://pypi.org/project/flash-attn-4/"
    sources = SHARED

    def unavailable(self, target: Target) -> str | None:
        return missing(target, "flash_attn.cute", "pip install --pre flash-attn-4 (brings a compiler of 92 MB)")

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.dtype == "float32":
            return "takes float16 and bfloat16 only; choose one of them"
        if params.head_dim % 8 or params.head_dim > 128:
            return f"head_dim {params.head_dim} is no multiple of 8 up to 128; use sdpa_flash"
        oldest = (8, 0) if params.direction == "forward" else (9, 0)
        return below(target, oldest, f"its {params.direction}", "sdpa_efficient")

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from flash_attn.cute import flash_attn_func

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out, _lse = flash_attn_func(q, k, v, causal=params.causal)
            return out

        run = attention_call(seqlen_before_heads(function), inputs)
        run()  # compiles
        return Prepared(run, backend="library")
