"""Straightforward versions without any tuning: what a first attempt costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED
from baselines.block_sparse_attention._semantics import renormalised_only
from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams
from harness.ops.calls import attention_call
from harness.ops.dense import softmax
from harness.ops.masks import causal_mask
from harness.ops.spmm import SpMMParams

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class NaiveAttention(Contender):
    """One head after the other, scores materialised."""

    name = "naive"
    op = "attention"
    role = "control"
    label = "Naive"
    summary = "a Python loop over batch and heads: matmul, softmax, matmul"
    source = "PyTorch"
    sources = (*SHARED, "harness/ops/masks.py", "harness/ops/dense.py")

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        visible = None
        if params.causal:
            visible = causal_mask(range(params.seqlen_q), params.seqlen_q, params.seqlen_k, target.device)
        group = params.num_heads // params.num_heads_kv

        def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return softmax(q @ k.T * params.head_dim**-0.5, visible, None, pruned_as_zero=False) @ v

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            heads = [
                one_head(q[b, h], k[b, h // group], v[b, h // group])
                for b in range(params.batch)
                for h in range(params.num_heads)
            ]
            return torch.stack(heads).view_as(q)

        return Prepared(attention_call(forward, inputs), backend="library")


class NaiveBlockSparseAttention(Contender):
    """One row of blocks after the other: gather its kept keys, then matmul, softmax, matmul."""

    name = "naive"
    op = "block_sparse_attention"
    role = "control"
    label = "Naive"
    summary = "a Python loop over rows of blocks that gathers the kept keys"
    source = "PyTorch"
    sources = (*NaiveAttention.sources, "baselines/block_sparse_attention/_semantics.py")

    def unsupported(self, params: BlockSparseParams, target: Target) -> str | None:
        return renormalised_only(params)

    def prepare(self, params: BlockSparseParams, inputs: Tensors, target: Target) -> Prepared:
        group = params.num_heads // params.num_heads_kv
        per_head = inputs["pattern"].expand(params.num_heads, -1, -1)
        keys = torch.arange(params.seqlen_k, device=target.device)
        rows_of_blocks = [
            range(first, min(first + params.block, params.seqlen_q))
            for first in range(0, params.seqlen_q, params.block)
        ]
        gathered = [[keys[row[keys // params.block]] for row in pattern] for pattern in per_head]
        visible = [
            causal_mask(rows, params.seqlen_q, params.seqlen_k, target.device) if params.causal else None
            for rows in rows_of_blocks
        ]

        def one_head(q: Tensor, k: Tensor, v: Tensor, kept: list[Tensor]) -> Tensor:
            out = []
            for rows, kept_keys, seen in zip(rows_of_blocks, kept, visible, strict=True):
                scores = q[:, rows.start : rows.stop] @ k[:, kept_keys].mT * params.head_dim**-0.5
                seen = None if seen is None else seen[:, kept_keys]
                out.append(softmax(scores, seen, None, pruned_as_zero=False) @ v[:, kept_keys])
            return torch.cat(out, 1)

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            heads = range(params.num_heads)
            return torch.stack([one_head(q[:, h], k[:, h // group], v[:, h // group], gathered[h]) for h in heads], 1)

        return Prepared(attention_call(forward, inputs), backend="library")


class NaiveSpMM(Contender):
    """Gather a row of X for every non-zero, scale it, add it to its row of Y in float32."""

    name = "naive"
    op = "spmm"
    role = "control"
    label = "Naive"
    summary = "gather, scale and index_add, one row of X per non-zero"
    source = "PyTorch"

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        w, x = inputs["w"], inputs["x"]
        rows, columns = w.nonzero(as_tuple=True)
        values = w[rows, columns].float()[:, None]
        total = torch.empty(params.m, params.n, device=x.device)

        def run() -> dict[str, Tensor]:
            total.zero_().index_add_(0, rows, values * x[columns])
            return {"y": total.to(x.dtype)}

        format_bytes = sum(part.nbytes for part in (rows, columns, values))
        floor = format_bytes + x.nbytes + params.m * params.n * x.element_size()
        return Prepared(run, backend="library", format_bytes=format_bytes, bytes_floor=floor)
