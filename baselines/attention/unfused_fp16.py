"""Attention as a user writes it without a fused kernel: matmul, scale, mask, softmax, matmul in the case's dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED, has_empty_rows
from harness.contender import Prepared, Target
from harness.exchange import AttentionContender
from harness.lazy import lazy_import
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import Forward, attention_call
from harness.ops.masks import causal_mask

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class UnfusedFp16(AttentionContender):
    """The published comparison's "PyTorch FP16": scores are materialised and stay in the case's dtype."""

    name = "unfused_fp16"
    role = "baseline"
    label = "Unfused FP16"
    summary = "matmul, scale, mask, softmax, matmul; scores in device memory, no upcast"
    source = "PyTorch"
    sources = (*SHARED, "harness/ops/masks.py")

    def function(self, params: AttentionParams, target: Target) -> Forward:
        hidden = None
        if params.causal:
            hidden = ~causal_mask(range(params.seqlen_q), params.seqlen_q, params.seqlen_k, target.device)
        group = params.num_heads // params.num_heads_kv

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if group > 1:
                k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.matmul(q, k.transpose(-1, -2)) * params.head_dim**-0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            probabilities = scores.softmax(-1)
            if has_empty_rows(params):
                probabilities = probabilities.masked_fill(hidden, 0)
            return torch.matmul(probabilities, v)

        return forward

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        return Prepared(attention_call(self.function(params, target), inputs), backend="library")
