"""Which softmax a library computes over a pattern."""

from __future__ import annotations

from harness.ops.block_sparse_attention import BlockSparseParams


def renormalised_only(params: BlockSparseParams) -> str | None:
    if params.softmax == "renormalised":
        return None
    return f"its softmax runs over the kept entries only, not {params.softmax}; use softmax=renormalised"
