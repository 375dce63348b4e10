"""Attention by unfused matmul, softmax, matmul in any dtype: the references and the gate's yardstick.

Scores are materialised in chunks of bounded size. In float64 a chunk may hold part of the rows; in other dtypes
it holds whole heads, so that every sum is rounded as one unchunked computation would round it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.lazy import lazy_import
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

SCORE_BYTES = 2**28  # of one score tensor; autograd keeps about five of its size

# (heads, rows) -> (visible, kept), bool, broadcastable to [len(heads), len(rows), seqlen_k]; None is all True.
# A key that is not visible has logit -inf; one that is visible but not kept is left out as `pruned_as_zero` says.
Mask = Callable[[range, range], tuple["Tensor | None", "Tensor | None"]]


def softmax(scores: Tensor, visible: Tensor | None, kept: Tensor | None, pruned_as_zero: bool) -> Tensor:
    """Softmax over the last dimension; rows without a key give 0."""
    used = visible if kept is None else kept if visible is None else visible & kept
    if used is None:
        return scores.softmax(-1)
    if pruned_as_zero and kept is not None:
        scores = scores.masked_fill(~kept, 0)
        used_by_denominator = visible
    else:
        used_by_denominator = used
    if used_by_denominator is not None:
        scores = scores.masked_fill(~used_by_denominator, float("-inf"))
    return scores.softmax(-1).masked_fill(~used, 0)


def attention(
    inputs: Tensors, dtype: Any, mask: Mask, pruned_as_zero: bool = False, row_term_of_out: bool = False
) -> dict[str, Tensor]:
    """{"out"}, or {"dq", "dk", "dv"} when the inputs have "dout", in `dtype`.

    q, dout: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim]. The scale is
    head_dim**-0.5 and multiplies the product of q and k after it was rounded to `dtype`. The gradients are autograd's,
    or with `row_term_of_out` those of `_gradients`.
    """
    q = inputs["q"]
    group = q.shape[1] // inputs["k"].shape[1]
    k, v = (inputs[name].repeat_interleave(group, 1).flatten(0, 1) for name in ("k", "v"))
    backward = "dout" in inputs
    flat = {"q": q.flatten(0, 1), "dout": inputs["dout"].flatten(0, 1)} if backward else {"q": q.flatten(0, 1)}
    names = ("dq", "dk", "dv") if backward else ("out",)
    like = {"dq": flat["q"], "dk": k, "dv": v, "out": flat["q"]}
    results = {name: torch.zeros_like(like[name], dtype=dtype) for name in names}

    for heads, rows in _chunks(q.shape, k.shape[1], dtype):
        of_heads, of_rows = slice(heads.start, heads.stop), slice(rows.start, rows.stop)
        leaves = [t.to(dtype) for t in (flat["q"][of_heads, of_rows], k[of_heads], v[of_heads])]
        with torch.set_grad_enabled(backward):
            qc, kc, vc = (t.detach().requires_grad_(backward) for t in leaves)
            scores = qc @ kc.transpose(-1, -2) * q.shape[-1] ** -0.5
            probabilities = softmax(scores, *mask(heads, rows), pruned_as_zero)
            out = probabilities @ vc
        if not backward:
            results["out"][of_heads, of_rows] = out
            continue
        dout = flat["dout"][of_heads, of_rows].to(dtype)
        if row_term_of_out:
            dq, dk, dv = _gradients(dout, qc.detach(), kc.detach(), vc.detach(), out.detach(), probabilities.detach())
        else:
            dq, dk, dv = torch.autograd.grad(out, (qc, kc, vc), dout)
        results["dq"][of_heads, of_rows] = dq
        results["dk"][of_heads] += dk
        results["dv"][of_heads] += dv
    return {name: _sum_groups(t.unflatten(0, q.shape[:2]), inputs, name) for name, t in results.items()}


def _gradients(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv by the formula of fused kernels: the row term of the softmax's gradient, sum(p dp), is taken as
    sum(dout out), from the rounded output (Dao et al., 2022, section 3)."""
    row_term = (dout * out).sum(-1, keepdim=True, dtype=torch.promote_types(out.dtype, torch.float32))
    ds = (p * (dout @ v.mT - row_term) * q.shape[-1] ** -0.5).to(q.dtype)
    return ds @ k, ds.mT @ q, p.mT @ dout


def _chunks(q_shape: Any, seqlen_k: int, dtype: Any) -> Iterator[tuple[range, range]]:
    heads, seqlen_q = q_shape[0] * q_shape[1], q_shape[2]
    row_bytes = seqlen_k * dtype.itemsize
    rows_per_chunk = seqlen_q if dtype != torch.float64 else max(1, min(seqlen_q, SCORE_BYTES // row_bytes))
    heads_per_chunk = max(1, SCORE_BYTES // (rows_per_chunk * row_bytes))
    for head in range(0, heads, heads_per_chunk):
        for row in range(0, seqlen_q, rows_per_chunk):
            yield (
                range(head, min(heads, head + heads_per_chunk)),
                range(row, min(seqlen_q, row + rows_per_chunk)),
            )


def _sum_groups(gradient: Tensor, inputs: Tensors, name: str) -> Tensor:
    """Sum dk and dv over the query heads that share a key head."""
    if name not in ("dk", "dv") or gradient.shape[1] == inputs["k"].shape[1]:
        return gradient
    return gradient.unflatten(1, (inputs["k"].shape[1], -1)).sum(2)
