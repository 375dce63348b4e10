"""FlexAttention, compiled by PyTorch to a Triton kernel, with a block mask where the case is causal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED
from baselines._flex import flex_unavailable, flex_unsupported, prepare_flex
from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from torch import Tensor


class FlexAttention(Contender):
    """Set-up includes the compilation, which PyTorch caches on disk between runs."""

    name = "flex_attention"
    op = "attention"
    role = "baseline"
    label = "FlexAttention"
    summary = "torch.nn.attention.flex_attention, compiled"
    source = "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html"
    sources = (*SHARED, "baselines/_flex.py")

    def unavailable(self, target: Target) -> str | None:
        return flex_unavailable(target)

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        return flex_unsupported(params)

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        shift = params.seqlen_k - params.seqlen_q

        def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return key <= query + shift

        return prepare_flex(params, inputs, causal if params.causal else None, heads=1)
