"""Block-sparse attention by its blocked algorithm, forward and backward, in plain PyTorch: the specification.

Per query block the kept key blocks are visited in order with a running maximum and sum (online softmax), as a
fused kernel does, so that scores exist one tile at a time. Statistics and sums are float32.

Both softmax semantics are one algorithm. A pruned entry of logit 0 adds exp(0 - m) to the denominator, so with
`pruned` of them in a row the running statistics start at m = 0, sum = pruned instead of m = -inf, sum = 0. The
constant has no gradient: dS = P * (dP - rowsum(dO * O)) holds for both.

Arguments as `api.block_sparse_attention`, already validated, but for `rows`, a BlockPattern's.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PRUNED_AS_ZERO = "pruned_as_zero"


def forward(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, lengths: Tensor | None, *, block: int, causal: bool, softmax: str
) -> tuple[Tensor, Tensor]:
    """`out` [batch, heads, seqlen, head_dim] in q's dtype and `lse` [batch, heads, seqlen] in float32.

    `lse` is the logarithm of the denominator; -inf, and out 0, for a row without entries.
    """
    scale = q.shape[-1] ** -0.5
    k, v = _per_query_head(k, q), _per_query_head(v, q)
    out = q.new_zeros(q.shape)
    lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
    for heads, some_rows, kept in _block_rows(rows, q.shape[2], block):
        queries = q[:, heads, some_rows].float()
        acc = torch.zeros_like(queries)
        total = torch.zeros(queries.shape[:3], device=q.device)
        if softmax == PRUNED_AS_ZERO:
            total += _pruned(_last_keys(some_rows, lengths, q, causal), kept)
        peak = torch.where(total > 0, 0.0, float("-inf"))
        for keys in kept:
            visible = _visible(_last_keys(some_rows, lengths, q, causal), keys)
            scores = _scores(queries, k[:, heads, keys].float(), visible, scale)
            new_peak = torch.maximum(peak, scores.amax(-1))
            safe_peak = new_peak.masked_fill(new_peak == float("-inf"), 0)  # a tile may hide all keys of a row
            weights = torch.exp(scores - safe_peak[..., None])
            correction = torch.exp(peak - safe_peak)
            total = total * correction + weights.sum(-1)
            acc = acc * correction[..., None] + weights @ _seen(v[:, heads, keys].float(), visible)
            peak = new_peak
        out[:, heads, some_rows] = (acc / total.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).to(q.dtype)
        lse[:, heads, some_rows] = peak + total.log()
    return out, lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rows: Tensor,
    lengths: Tensor | None,
    *,
    block: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv in the inputs' shapes and dtypes. P is recomputed from `lse`, which carries the softmax semantics."""
    scale = q.shape[-1] ** -0.5
    k_of_heads, v_of_heads = _per_query_head(k, q), _per_query_head(v, q)
    dq, dk, dv = (t.new_zeros(t.shape, dtype=torch.float32) for t in (q, k_of_heads, v_of_heads))
    delta = (dout.float() * out.float()).sum(-1)
    safe_lse = lse.masked_fill(lse == float("-inf"), 0)
    for heads, some_rows, kept in _block_rows(rows, q.shape[2], block):
        queries, gradient = q[:, heads, some_rows].float(), dout[:, heads, some_rows].float()
        for keys in kept:
            visible = _visible(_last_keys(some_rows, lengths, q, causal), keys)
            some_keys = _seen(k_of_heads[:, heads, keys].float(), visible)
            p = torch.exp(_scores(queries, some_keys, visible, scale) - safe_lse[:, heads, some_rows, None])
            dv[:, heads, keys] += p.mT @ gradient
            dp = gradient @ _seen(v_of_heads[:, heads, keys].float(), visible).mT
            ds = p * (dp - delta[:, heads, some_rows, None]) * scale
            dq[:, heads, some_rows] += ds @ some_keys
            dk[:, heads, keys] += ds.mT @ queries
    return dq.to(q.dtype), _sum_groups(dk, k), _sum_groups(dv, v)


def _block_rows(rows: Tensor, seqlen: int, block: int) -> Iterator[tuple[slice, slice, list[slice]]]:
    """(heads, query rows, kept key blocks) for every row of blocks of every pattern; the last block may be short."""
    blocks = -(-seqlen // block)
    for head, lists in enumerate(rows.tolist()):
        heads = slice(None) if len(rows) == 1 else slice(head, head + 1)
        starts, entries = lists[blocks : 2 * blocks + 1], lists[2 * blocks + 1 :]
        for i in range(blocks):
            kept = [_slice(j, block, seqlen) for j in entries[starts[i] : starts[i + 1]]]
            yield heads, _slice(i, block, seqlen), kept


def _slice(index: int, block: int, seqlen: int) -> slice:
    return slice(index * block, min(seqlen, (index + 1) * block))


def _last_keys(rows: slice, lengths: Tensor | None, q: Tensor, causal: bool) -> Tensor:
    """How many keys each query of `rows` sees, from the first on: int64 [batch or 1, 1, len(rows)]."""
    seen = torch.arange(rows.start + 1, rows.stop + 1, device=q.device)[None, None]
    if not causal:
        seen = torch.full_like(seen, q.shape[2])
    return seen if lengths is None else torch.minimum(seen, lengths.clamp(min=0)[:, None, None])


def _visible(last_keys: Tensor, keys: slice) -> Tensor:
    return torch.arange(keys.start, keys.stop, device=last_keys.device) < last_keys[..., None]


def _seen(of_keys: Tensor, visible: Tensor) -> Tensor:
    """Zero where no query sees the key: what padding holds, be it NaN, does not matter."""
    return of_keys.masked_fill(~visible.any(-2)[..., None], 0)


def _scores(queries: Tensor, keys: Tensor, visible: Tensor, scale: float) -> Tensor:
    return (queries @ keys.mT * scale).masked_fill(~visible, -torch.inf)


def _pruned(last_keys: Tensor, kept: list[slice]) -> Tensor:
    """How many keys each query may see but has pruned, shaped as `last_keys`."""
    return last_keys - sum((last_keys - keys.start).clamp(0, keys.stop - keys.start) for keys in kept)


def _per_query_head(kv: Tensor, q: Tensor) -> Tensor:
    return kv.repeat_interleave(q.shape[1] // kv.shape[1], 1)


def _sum_groups(gradient: Tensor, kv: Tensor) -> Tensor:
    return gradient.unflatten(1, (kv.shape[1], -1)).sum(2).to(kv.dtype)
