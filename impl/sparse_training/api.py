"""Block-sparse attention as a PyTorch op, with gradients.

`torch.ops.voltabench.block_sparse_attention` runs the reference on CPU tensors. It has no GPU kernel yet.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from impl.sparse_training import reference

Softmax = Literal["renormalised", "pruned_as_zero"]


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Tensor,
    block: int,
    causal: bool = False,
    softmax: Softmax = "renormalised",
) -> Tensor:
    """O = P V over the kept blocks, with scale head_dim**-0.5 (Yoon et al., IEEE Access 12, 2024, as SAT).

    q: [batch, heads, seqlen, head_dim]; k, v: [batch, heads_kv, seqlen, head_dim], heads a multiple of heads_kv;
    float16, bfloat16 or float32, all the same. pattern: bool [1 or heads, blocks, blocks], blocks =
    ceil(seqlen / block), True where a block is kept; it gets no gradient. causal: query i sees keys j <= i.
    softmax: over the kept entries (`renormalised`), or with every pruned entry as logit 0 in the denominator
    (`pruned_as_zero`, the paper's; rows then do not sum to 1; entries that the causal mask hides do not count).
    Returns [batch, heads, seqlen, head_dim] in q's dtype; rows without a kept entry are 0. Deterministic.

    Raises ValueError for shapes, dtypes, devices, a pattern of another length or an unknown softmax, and
    NotImplementedError on a GPU.
    """
    _check(q, k, v, pattern, block, softmax)
    return _forward(q, k, v, pattern, block, causal, softmax)[0]


def _check(q: Tensor, k: Tensor, v: Tensor, pattern: Tensor, block: int, softmax: str) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        shapes = [list(t.shape) for t in (q, k, v)]
        raise ValueError(f"q, k, v must be [batch, heads, seqlen, head_dim], k and v alike, not {shapes}")
    batch, heads, seqlen, head_dim = q.shape
    if (k.shape[0], *k.shape[2:]) != (batch, seqlen, head_dim):
        raise ValueError(
            f"k is {list(k.shape)}; with q {list(q.shape)} it must be [{batch}, heads_kv, {seqlen}, {head_dim}]"
        )
    if heads % k.shape[1]:
        raise ValueError(f"{heads} query heads are no multiple of {k.shape[1]} key heads")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32) or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v must share float16, bfloat16 or float32, not {q.dtype}, {k.dtype}, {v.dtype}")
    if block < 1:
        raise ValueError(f"block must be positive, not {block}")
    blocks = -(-seqlen // block)
    if pattern.dtype != torch.bool or pattern.dim() != 3 or pattern.shape[0] not in (1, heads):
        raise ValueError(
            f"pattern must be bool [1 or {heads}, {blocks}, {blocks}], not {pattern.dtype} {list(pattern.shape)}"
        )
    if pattern.shape[1:] != (blocks, blocks):
        raise ValueError(
            f"the pattern has {pattern.shape[1]} x {pattern.shape[2]} blocks, but seqlen {seqlen} in blocks of "
            f"{block} has {blocks} x {blocks}"
        )
    if softmax not in ("renormalised", "pruned_as_zero"):
        raise ValueError(f"softmax must be renormalised or pruned_as_zero, not {softmax!r}")
    devices = {t.device for t in (q, k, v, pattern)}
    if len(devices) > 1:
        raise ValueError(f"q, k, v and pattern must be on one device, not {', '.join(sorted(map(str, devices)))}")
    if q.is_cuda:
        raise NotImplementedError("block-sparse attention has no GPU kernel yet; move the tensors to the CPU")


@torch.library.custom_op("voltabench::block_sparse_attention", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, pattern: Tensor, block: int, causal: bool, softmax: str
) -> tuple[Tensor, Tensor]:
    return reference.forward(q, k, v, pattern, block, causal, softmax)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, pattern: Tensor, block: int, causal: bool, softmax: str
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("voltabench::block_sparse_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
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
    return reference.backward(dout, q, k, v, out, lse, pattern, block, causal)


@_backward.register_fake
def _(
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
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output) -> None:
    q, k, v, pattern, ctx.block, ctx.causal, _softmax = inputs
    ctx.save_for_backward(q, k, v, *output, pattern)


def _differentiate(ctx, dout: Tensor, _dlse: Tensor):
    q, k, v, out, lse, pattern = ctx.saved_tensors
    gradients = _backward(dout, q, k, v, out, lse, pattern, ctx.block, ctx.causal)
    return (*gradients, None, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)
