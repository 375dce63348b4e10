"""Attention over the kept blocks of a fixed pattern, forward and backward.

The pattern is [heads or 1, query blocks, key blocks], boolean. `renormalised`: softmax over the kept entries.
`pruned_as_zero` (the SAT paper): a pruned entry counts as logit 0 in the denominator.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from harness.ops.attention import AttentionParams


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
