"""Block-sparse attention by its blocked algorithm, forward and backward, in plain PyTorch: the specification.

Per query block the kept key blocks are visited in order with a running maximum and sum (online softmax), as a
fused kernel does, so that scores exist one tile at a time. Statistics and sums are float32.

Both softmax semantics are one algorithm. A pruned entry of logit 0 adds exp(0 - m) to the denominator, so with
`pruned` of them in a row the running statistics start at m = 0, sum = pruned instead of m = -inf, sum = 0. The
constant has no gradient: dS = P * (dP - rowsum(dO * O)) holds for both.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PRUNED_AS_ZERO = "pruned_as_zero"


def forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: Tensor, block: int, causal: bool, softmax: str
) -> tuple[Tensor, Tensor]:
    """`out` [batch, heads, seqlen, head_dim] in q's dtype and `lse` [batch, heads, seqlen] in float32.

    `lse` is the logarithm of the denominator; -inf, and out 0, for a row without entries. Arguments as
    `api.block_sparse_attention`, already validated.
    """
    scale = q.shape[-1] ** -0.5
    k, v = _per_query_head(k, q), _per_query_head(v, q)
    out = q.new_zeros(q.shape)
    lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
    for heads, rows, kept in _block_rows(pattern, q.shape[2], block):
        queries = q[:, heads, rows].float()
        acc = torch.zeros_like(queries)
        total = _pruned(rows, kept, q.shape[2], causal, queries).expand(queries.shape[:3]).clone()
        if softmax != PRUNED_AS_ZERO:
            total.zero_()
        peak = torch.where(total > 0, 0.0, float("-inf"))
        for keys in kept:
            scores = _scores(queries, k[:, heads, keys].float(), rows, keys, scale, causal)
            new_peak = torch.maximum(peak, scores.amax(-1))
            safe_peak = new_peak.masked_fill(new_peak == float("-inf"), 0)  # a tile may hide all keys of a row
            weights = torch.exp(scores - safe_peak[..., None])
            correction = torch.exp(peak - safe_peak)
            total = total * correction + weights.sum(-1)
            acc = acc * correction[..., None] + weights @ v[:, heads, keys].float()
            peak = new_peak
        out[:, heads, rows] = (acc / total.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).to(q.dtype)
        lse[:, heads, rows] = peak + total.log()
    return out, lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    pattern: Tensor,
    block: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv in the inputs' shapes and dtypes. P is recomputed from `lse`, which carries the softmax semantics."""
    scale = q.shape[-1] ** -0.5
    k_of_heads, v_of_heads = _per_query_head(k, q), _per_query_head(v, q)
    dq, dk, dv = (t.new_zeros(t.shape, dtype=torch.float32) for t in (q, k_of_heads, v_of_heads))
    delta = (dout.float() * out.float()).sum(-1)
    safe_lse = lse.masked_fill(lse == float("-inf"), 0)
    for heads, rows, kept in _block_rows(pattern, q.shape[2], block):
        queries, gradient = q[:, heads, rows].float(), dout[:, heads, rows].float()
        for keys in kept:
            some_keys = k_of_heads[:, heads, keys].float()
            scores = _scores(queries, some_keys, rows, keys, scale, causal)
            p = torch.exp(scores - safe_lse[:, heads, rows, None])
            dv[:, heads, keys] += p.mT @ gradient
            dp = gradient @ v_of_heads[:, heads, keys].float().mT
            ds = p * (dp - delta[:, heads, rows, None]) * scale
            dq[:, heads, rows] += ds @ some_keys
            dk[:, heads, keys] += ds.mT @ queries
    return dq.to(q.dtype), _sum_groups(dk, k), _sum_groups(dv, v)


def _block_rows(pattern: Tensor, seqlen: int, block: int) -> Iterator[tuple[slice, slice, list[slice]]]:
    """(heads, query rows, kept key blocks) for every row of blocks of every pattern; the last block may be short."""
    for head, of_head in enumerate(pattern.tolist()):
        heads = slice(None) if len(pattern) == 1 else slice(head, head + 1)
        for i, row in enumerate(of_head):
            kept = [slice(j * block, min(seqlen, (j + 1) * block)) for j, keep in enumerate(row) if keep]
            yield heads, slice(i * block, min(seqlen, (i + 1) * block)), kept


def _scores(queries: Tensor, keys: Tensor, rows: slice, columns: slice, scale: float, causal: bool) -> Tensor:
    scores = queries @ keys.mT * scale
    if causal and columns.stop - 1 > rows.start:
        row = torch.arange(rows.start, rows.stop, device=queries.device)[:, None]
        scores = scores.masked_fill(torch.arange(columns.start, columns.stop, device=queries.device) > row, -torch.inf)
    return scores


def _pruned(rows: slice, kept: list[slice], seqlen: int, causal: bool, like: Tensor) -> Tensor:
    """How many keys each query of `rows` may see but has pruned: float [len(rows)]."""
    seen = torch.arange(rows.start + 1, rows.stop + 1, device=like.device)
    if not causal:
        seen = torch.full_like(seen, seqlen)
    kept_and_seen = sum(((seen - keys.start).clamp(0, keys.stop - keys.start) for keys in kept), torch.zeros_like(seen))
    return (seen - kept_and_seen).float()


def _per_query_head(kv: Tensor, q: Tensor) -> Tensor:
    return kv.repeat_interleave(q.shape[1] // kv.shape[1], 1)


def _sum_groups(gradient: Tensor, kv: Tensor) -> Tensor:
    return gradient.unflatten(1, (kv.shape[1], -1)).sum(2).to(kv.dtype)
