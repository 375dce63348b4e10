"""SAT's block-sparse attention as a contender."""

from __future__ import annotations

import functools

from harness.contender import Contender, Prepared, Target
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams
from harness.ops.calls import attention_call


class SatBlockSparse(Contender):
    """Both softmax semantics, shared or per-head patterns, any length, grouped heads."""

    name = "sat_block_sparse"
    op = "block_sparse_attention"
    role = "ours"
    label = "SAT (ours)"
    summary = "our block-sparse attention after SAT: the blocked algorithm in plain PyTorch on a CPU"
    source = "Yoon et al., IEEE Access 12, 2024, doi 10.1109/ACCESS.2024.3425638"
    sources = ("harness/ops/calls.py", "impl/sparse_training/api.py", "impl/sparse_training/reference.py")

    def unavailable(self, target: Target) -> str | None:
        return "has no GPU kernel yet; measure it on a CPU, or flex_attention here" if target.is_cuda else None

    def prepare(self, params: BlockSparseParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.sparse_training.api import block_sparse_attention

        forward = functools.partial(
            block_sparse_attention,
            pattern=inputs["pattern"],
            block=params.block,
            causal=params.causal,
            softmax=params.softmax,
        )
        return Prepared(attention_call(forward, inputs), backend="reference", variant=params.softmax)
