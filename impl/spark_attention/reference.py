"""SparkAttention in plain torch: what the kernels compute, block by block, and the op on a CPU.

Forward: for each block of queries walk over the keys a block at a time, keeping the running row maximum and sum
(online softmax). Backward: recompute each block of probabilities from the saved log-sum-exp. Products of 16-bit
inputs accumulate in float32; probabilities and their gradients are rounded to the input type before the second
product, as Tensor Cores need them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from impl.spark_attention.dropout import kept
from impl.spark_attention.extras import ABSORBING, NONE, Extras

QUERY_BLOCK = 128
KEY_BLOCK = 64
MMA_DEPTH = 4  # products that one mma.m8n8k4 sums before it rounds
FP16_SUM_OF_SCORES = 16  # products that the Volta kernel sums in fp16 before it adds the sum in float32
FP16_SUM_OF_VALUES = 32


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
    accumulate: str = "fp32",
    extras: Extras = NONE,
) -> tuple[Tensor, Tensor]:
    """Attention and the natural logarithm of its softmax denominators.

    q [batch, heads, seqlen_q, head_dim], k and v [batch, heads_kv, seqlen_k, head_dim], of one floating type.
    A causal mask is aligned bottom-right. `extras` are a mask and dropout. Returns out as q, and lse [batch, heads,
    seqlen_q] in float32 (float64 for float64 inputs); a row without keys has out 0 and lse -inf. `accumulate="fp16"`
    rounds as the Volta kernel with fp16 accumulators does.
    """
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=_work_type(q))
    queries, keys, values = _grouped(q, k), k.unsqueeze(2), v.unsqueeze(2)
    for rows in _blocks(q.shape[2], QUERY_BLOCK):
        block = _forward_rows(queries, keys, values, rows, causal, softmax_scale, accumulate, extras)
        out[:, :, rows], lse[:, :, rows] = (x.flatten(1, 2) for x in block)
    return out, lse


def _forward_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: slice,
    causal: bool,
    softmax_scale: float,
    accumulate: str,
    extras: Extras,
) -> tuple[Tensor, Tensor]:
    work = _work_type(q)
    q_rows = q[..., rows, :]
    total = q.new_zeros(q_rows.shape, dtype=work)
    row_max = q.new_full(q_rows.shape[:-1], -math.inf, dtype=work)
    row_sum = torch.zeros_like(row_max)
    for keys in _blocks(_visible_keys(rows, q, k, causal), KEY_BLOCK):
        if accumulate == "fp16":
            # The power of two in the scale goes into Q: exact, and the scores keep clear of overflow.
            power = 2.0 ** math.floor(math.log2(softmax_scale))
            scores = _matmul_fp16(q_rows * power, k[..., keys, :].mT, FP16_SUM_OF_SCORES) * (softmax_scale / power)
        else:
            scores = q_rows.to(work) @ k[..., keys, :].mT.to(work) * softmax_scale
        scores = _mask(scores, rows, keys, q, k, causal, extras)

        new_max = torch.maximum(row_max, scores.amax(-1))
        base = new_max.masked_fill(new_max == -math.inf, 0)  # no key seen yet: any finite base gives p = 0
        p = torch.exp(scores - base[..., None])
        correction = torch.exp(row_max - base)
        row_sum = row_sum * correction + p.sum(-1)
        row_max = new_max
        p, v_keys = _drop(p, rows, keys, extras).to(q.dtype), v[..., keys, :]
        product = _matmul_fp16(p, v_keys, FP16_SUM_OF_VALUES) if accumulate == "fp16" else p.to(work) @ v_keys.to(work)
        total = total * correction[..., None] + product
    out = total / row_sum.masked_fill(row_sum == 0, 1)[..., None] * extras.keep_scale
    return out.to(q.dtype), row_max + row_sum.log()


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
    extras: Extras = NONE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dq, dk, dv) in the inputs' types and shapes; dk and dv are summed over a group of query heads.

    dout and out as q; lse as `attention_forward` returned it.
    """
    work = _work_type(q)
    queries, keys_, values = (x.to(work) for x in (_grouped(q, k), k.unsqueeze(2), v.unsqueeze(2)))
    douts, outs, lses = (_grouped(x, k) for x in (dout.to(work), out.to(work), lse))
    base = lses.masked_fill(lses == -math.inf, 0)[..., None]
    dq, dk, dv = torch.zeros_like(queries), torch.zeros_like(keys_), torch.zeros_like(values)
    for rows in _blocks(q.shape[2], QUERY_BLOCK):
        q_rows, dout_rows = queries[..., rows, :], douts[..., rows, :]
        # dout . out per row, by the same product that gives dp: a row with one key then has ds of exactly 0.
        delta = (dout_rows @ outs[..., rows, :].mT).diagonal(dim1=-2, dim2=-1)[..., None]
        for keys in _blocks(_visible_keys(rows, q, k, causal), KEY_BLOCK):
            k_keys = keys_[..., keys, :]
            scores = _mask(q_rows @ k_keys.mT * softmax_scale, rows, keys, q, k, causal, extras)
            p = torch.exp(scores - base[..., rows, :])
            dp = _drop(dout_rows @ values[..., keys, :].mT, rows, keys, extras) * extras.keep_scale
            ds = (p * (dp - delta)).to(q.dtype).to(work)
            dq[..., rows, :] += ds @ k_keys * softmax_scale
            dk[..., keys, :] += (ds.mT @ q_rows * softmax_scale).sum(2, keepdim=True)
            p = _drop(p, rows, keys, extras).to(q.dtype).to(work)
            dv[..., keys, :] += (p.mT @ dout_rows * extras.keep_scale).sum(2, keepdim=True)
    return dq.flatten(1, 2).to(q.dtype), dk.squeeze(2).to(k.dtype), dv.squeeze(2).to(v.dtype)


def _work_type(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """[batch, heads, ...] as [batch, heads_kv, group, ...], to go with k.unsqueeze(2)."""
    return x.unflatten(1, (k.shape[1], x.shape[1] // k.shape[1]))


def _blocks(length: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


def _visible_keys(rows: slice, q: Tensor, k: Tensor, causal: bool) -> int:
    """How many keys the last of `rows` sees."""
    seqlen_q, seqlen_k = q.shape[-2], k.shape[-2]
    return min(max(rows.stop + seqlen_k - seqlen_q, 0), seqlen_k) if causal else seqlen_k


def _mask(scores: Tensor, rows: slice, keys: slice, q: Tensor, k: Tensor, causal: bool, extras: Extras) -> Tensor:
    if extras.mask is not None:
        scores = _add_mask(scores, extras.mask[..., rows, keys].reshape(scores.shape))
    if not causal:
        return scores
    last_visible = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + k.shape[-2] - q.shape[-2]
    return scores.masked_fill(torch.arange(keys.start, keys.stop, device=q.device) > last_visible, -math.inf)


def _add_mask(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    lowest = torch.where(mask == -math.inf, mask, ABSORBING).to(scores.dtype)
    return torch.where(mask <= ABSORBING, lowest, scores + mask)


def _drop(p: Tensor, rows: slice, keys: slice, extras: Extras) -> Tensor:
    if extras.dropout_p == 0:
        return p
    batch, heads_kv, group = p.shape[:3]
    return p * kept(extras.seed, extras.dropped, batch, heads_kv * group, rows, keys).view(p.shape)


def _matmul_fp16(a: Tensor, b: Tensor, length: int) -> Tensor:
    """a @ b in float32 of sums in fp16: of `length` products each, rounded after every MMA_DEPTH of them."""
    total = torch.zeros((), device=a.device)
    for terms in _blocks(a.shape[-1], length):
        a_terms, b_terms = a[..., terms].float(), b[..., terms, :].float()
        partial = torch.zeros((), device=a.device)
        for depth in _blocks(a_terms.shape[-1], MMA_DEPTH):
            partial = (partial + a_terms[..., depth] @ b_terms[..., depth, :]).half().float()
        total = total + partial
    return total
