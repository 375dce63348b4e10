"""Attention over the kept blocks of a fixed pattern, forward and backward.

The pattern is [heads or 1, query blocks, key blocks], boolean. `renormalised`: softmax over the kept entries.
`pruned_as_zero` (the SAT paper): a pruned entry counts as logit 0 in the denominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from harness.lazy import lazy_import
from harness.ops import dense
from harness.ops.attention import Attention, AttentionParams
from harness.ops.base import Tensors
from harness.ops.masks import causal_mask, pattern_mask

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class BlockSparseParams(AttentionParams):
    """A case: an attention case with a block pattern of the given density."""

    block: Literal[32, 64, 128]
    density: float = Field(gt=0, le=1)
    pattern: Literal["random", "window"] = "random"
    softmax: Literal["renormalised", "pruned_as_zero"] = "renormalised"

    @model_validator(mode="after")
    def _square(self) -> BlockSparseParams:
        if self.seqlen_q != self.seqlen_k:
            raise ValueError(f"seqlen_q={self.seqlen_q} and seqlen_k={self.seqlen_k} must be equal")
        return self

    def slug(self) -> str:
        return f"{super().slug()}.{self.pattern}.block{self.block}.density{self.density:g}.{self.softmax}"


def block_pattern(params: BlockSparseParams) -> np.ndarray:
    """Bool [blocks, blocks], the same on every device: `random` keeps round(density * candidates) blocks (at
    least one) among those that the causal mask leaves, and may leave rows empty; `window` keeps the band around
    the diagonal whose count comes nearest to that."""
    blocks = -(-params.seqlen_q // params.block)
    row, column = np.indices((blocks, blocks))
    candidates = column <= row if params.causal else np.ones((blocks, blocks), bool)
    count = max(1, round(params.density * int(candidates.sum())))
    if params.pattern == "window":
        bands = [candidates & (abs(row - column) <= width) for width in range(blocks)]
        return min(bands, key=lambda band: abs(int(band.sum()) - count))
    chosen = np.random.default_rng(params.seed).choice(np.flatnonzero(candidates), count, replace=False)
    kept = np.zeros(blocks * blocks, bool)
    kept[chosen] = True
    return kept.reshape(blocks, blocks)


class BlockSparseAttention(Attention):
    """Inputs as attention, and `pattern` [1, blocks, blocks]; the same outputs."""

    name = "block_sparse_attention"
    Params = BlockSparseParams

    def inputs(self, params: BlockSparseParams, device: str) -> Tensors:
        pattern = torch.from_numpy(block_pattern(params)[None]).to(device)
        return {**super().inputs(params, device), "pattern": pattern}

    def plain(self, params: BlockSparseParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        """Reads the pattern from the inputs: bool [1 or num_heads, blocks, blocks]."""
        pattern = inputs["pattern"]

        def mask(heads: range, rows: range) -> tuple[Tensor | None, Tensor]:
            of_heads = pattern if len(pattern) == 1 else pattern[[h % params.num_heads for h in heads]]
            kept = pattern_mask(of_heads, params.block, rows, params.seqlen_k)
            visible = causal_mask(rows, params.seqlen_q, params.seqlen_k, pattern.device) if params.causal else None
            return visible, kept

        return dense.attention(inputs, dtype, mask, params.softmax == "pruned_as_zero")

    def flops(self, params: BlockSparseParams) -> float:
        """Of the kept (query, key) pairs only."""
        pattern = block_pattern(params)
        sizes = np.minimum(params.block, params.seqlen_q - params.block * np.arange(len(pattern)))
        pairs = np.outer(sizes, sizes)
        if params.causal:
            pairs = np.tril(pairs, -1) + np.diag(sizes * (sizes + 1) // 2)
        return self._flops_of_pairs(params, int(pairs[pattern].sum()))

    def columns(self, params: BlockSparseParams) -> dict[str, Any]:
        """`density` is counted: kept blocks over those that the causal mask leaves."""
        pattern = block_pattern(params)
        candidates = np.tril(np.ones_like(pattern)) if params.causal else np.ones_like(pattern)
        counted = float(pattern.sum() / candidates.sum())
        own = {"pattern": params.pattern, "block": params.block, "density": counted, "softmax": params.softmax}
        return {**super().columns(params), **own}
