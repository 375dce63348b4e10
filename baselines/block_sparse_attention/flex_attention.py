"""FlexAttention over the kept blocks, compiled by PyTorch to a Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED
from baselines._flex import flex_unavailable, flex_unsupported, prepare_flex
from baselines.block_sparse_attention._semantics import renormalised_only
from harness.contender import Contender, Prepared, Target
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams

if TYPE_CHECKING:
    from torch import Tensor


class BlockSparseFlexAttention(Contender):
    """Its block mask has blocks of 128; a finer pattern is looked up inside them, and `tuning` says what share
    of the 128-blocks is then touched."""

    name = "flex_attention"
    op = "block_sparse_attention"
    role = "baseline"
    label = "FlexAttention"
    summary = "torch.nn.attention.flex_attention with a block mask, compiled"
    source = "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html"
    sources = (*SHARED, "baselines/_flex.py", "baselines/block_sparse_attention/_semantics.py")

    def unavailable(self, target: Target) -> str | None:
        return flex_unavailable(target)

    def unsupported(self, params: BlockSparseParams, target: Target) -> str | None:
        return renormalised_only(params) or flex_unsupported(params)

    def prepare(self, params: BlockSparseParams, inputs: Tensors, target: Target) -> Prepared:
        pattern, block = inputs["pattern"], params.block
        heads = len(pattern)

        def kept(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            chosen = pattern[head if heads > 1 else 0, query // block, key // block]
            return chosen & (key <= query) if params.causal else chosen

        return prepare_flex(params, inputs, kept, heads)
