"""SAT as published: the blocks expanded to single elements in CSR, float32, by SDDMM, softmax and SpMM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from impl.sparse_training.methods.base import Attention, in_float32
from impl.sparse_training.methods.block_sparse import BlockSparse


class ElementSparse(BlockSparse):
    """BlockSparse with pruned entries as logit 0, through torch's sparse products (cuSPARSE on a GPU)."""

    capturable = False  # eager steps differ in their last bits on a GPU: none could be told from a wrong replay

    def __init__(self, dense: Attention, block: int):
        super().__init__(dense, block, "pruned_as_zero")
        self._elements: Elements | None = None

    @in_float32
    def sparse(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        maps = q.shape[0] * q.shape[1]
        if self._elements is None or (self._elements.maps, self._elements.seqlen) != (maps, q.shape[2]):
            self._elements = Elements.of(self.pattern, self.block, q.shape[2], maps)
        return _Attention.apply(q, k, v, lengths, self._elements)


@dataclass(frozen=True)
class Elements:
    """The kept elements of `maps` equal maps, one after the other on the diagonal of one matrix.

    starts, columns: CSR. rows: of each element. The transposed matrix has starts_t, columns_t and the values[order].
    """

    maps: int
    seqlen: int
    starts: Tensor
    columns: Tensor
    rows: Tensor
    starts_t: Tensor
    columns_t: Tensor
    order: Tensor

    @classmethod
    def of(cls, pattern: Tensor, block: int, seqlen: int, maps: int) -> Elements:
        """Raises ValueError for a pattern of another length."""
        if len(pattern) != (blocks := -(-seqlen // block)):
            raise ValueError(
                f"the pattern has {len(pattern)} x {len(pattern)} blocks, but seqlen {seqlen} in blocks of {block} has "
                f"{blocks} x {blocks}"
            )
        kept = pattern.repeat_interleave(block, 0).repeat_interleave(block, 1)[:seqlen, :seqlen]
        rows, columns = kept.nonzero(as_tuple=True)
        order = columns.argsort(stable=True)

        def repeated(values: Tensor, step: int) -> Tensor:
            return (values + step * torch.arange(maps, device=values.device)[:, None]).flatten()

        def starts(counts: Tensor) -> Tensor:
            return torch.nn.functional.pad(counts.repeat(maps).cumsum(0), (1, 0))

        return cls(
            maps,
            seqlen,
            starts(kept.sum(1)),
            repeated(columns, seqlen),
            repeated(rows, seqlen),
            starts(kept.sum(0)),
            repeated(rows[order], seqlen),
            repeated(order, len(order)),
        )

    def matrix(self, values: Tensor) -> Tensor:
        return self._csr(self.starts, self.columns, values)

    def transposed(self, values: Tensor) -> Tensor:
        return self._csr(self.starts_t, self.columns_t, values[self.order])

    def _csr(self, starts: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        size = self.maps * self.seqlen
        return torch.sparse_csr_tensor(starts, columns, values, (size, size), check_invariants=False)

    def products(self, a: Tensor, b: Tensor) -> Tensor:
        """SDDMM: the kept elements of a b^T, a and b [maps * seqlen, head_dim]."""
        zeros = self.matrix(torch.zeros_like(self.columns, dtype=a.dtype))
        return torch.sparse.sampled_addmm(zeros, a, b.T, beta=0.0).values()

    def sums(self, values: Tensor) -> Tensor:
        return torch.segment_reduce(values, "sum", offsets=self.starts, initial=0.0)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, elements: Elements) -> Tensor:
        ctx.elements, ctx.scale = elements, q.shape[3] ** -0.5
        length = lengths.repeat_interleave(q.shape[1])  # of each map
        q, k, v = (t.reshape(-1, t.shape[3]) for t in (q, k, v))
        visible = elements.columns % elements.seqlen < length[elements.rows // elements.seqlen]
        scores = (elements.products(q, k) * ctx.scale).masked_fill(~visible, -torch.inf)
        pruned = length.repeat_interleave(elements.seqlen) - elements.sums(visible.to(q.dtype))
        peak = torch.segment_reduce(scores, "max", offsets=elements.starts, initial=torch.finfo(q.dtype).min)
        peak = torch.where(pruned > 0, peak.clamp(min=0), peak)
        weights = (scores - peak[elements.rows]).exp()
        total = elements.sums(weights) + pruned * (-peak).exp().nan_to_num(posinf=0.0)
        weights = weights / total.clamp(min=torch.finfo(q.dtype).tiny)[elements.rows]
        ctx.save_for_backward(q, k, v, weights)
        return (elements.matrix(weights) @ v).view(len(lengths), -1, elements.seqlen, v.shape[1])

    @staticmethod
    def backward(ctx, dout: Tensor):
        q, k, v, weights = ctx.saved_tensors
        elements, shape = ctx.elements, dout.shape
        dout = dout.reshape(q.shape)
        dweights = elements.products(dout, v)
        dscores = weights * (dweights - elements.sums(weights * dweights)[elements.rows]) * ctx.scale
        dq, dk = elements.matrix(dscores) @ k, elements.transposed(dscores) @ q
        dv = elements.transposed(weights) @ dout
        return *(t.view(shape) for t in (dq, dk, dv)), None, None
