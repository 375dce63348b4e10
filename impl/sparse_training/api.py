"""Block-sparse attention as a PyTorch op, with gradients: the reference on CPU tensors, kernels on a GPU."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from impl.sparse_training import reference
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.kernels import attention

Softmax = Literal["renormalised", "pruned_as_zero"]


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Tensor | BlockPattern,
    block: int | None = None,
    causal: bool = False,
    softmax: Softmax = "renormalised",
    lengths: Tensor | None = None,
) -> Tensor:
    """O = P V over the kept blocks, with scale head_dim**-0.5 (Yoon et al., IEEE Access 12, 2024, as SAT).

    q: [batch, heads, seqlen, head_dim]; k, v: [batch, heads_kv, seqlen, head_dim], heads a multiple of heads_kv;
    float16, bfloat16 or, on a CPU, float32, all the same. pattern: bool [1 or heads, blocks, blocks], blocks =
    ceil(seqlen / block), True where a block is kept; it gets no gradient. Made into a BlockPattern once, it costs
    nothing in later steps, and `block` is its own. causal: query i sees keys j <= i.
    softmax: over the kept entries (`renormalised`), or with every pruned entry as logit 0 in the denominator
    (`pruned_as_zero`, the paper's; rows then do not sum to 1). lengths: integers [batch], those outside 0 to seqlen
    taken as the nearer end; sequence b sees only its first lengths[b] keys, and what lies past them does not matter.
    Entries that the causal mask or the lengths hide count in neither denominator.
    Returns [batch, heads, seqlen, head_dim] in q's dtype; rows without a kept entry are 0. Deterministic.

    Raises ValueError for shapes, dtypes, devices, a pattern of another length or an unknown softmax, and on a GPU for
    float32, a head_dim above 128 and a block other than 32, 64 and 128.
    """
    if not isinstance(pattern, BlockPattern):
        if block is None:
            raise ValueError("a bool pattern needs its block: block_sparse_attention(q, k, v, pattern, block=64)")
        pattern = BlockPattern.of(pattern, block)
    elif block not in (None, pattern.block):
        raise ValueError(f"the pattern is one of blocks of {pattern.block}, not {block}")
    _check(q, k, v, pattern, softmax, lengths)
    lengths = None if lengths is None else _as_int32(lengths, q.shape[2])
    return _forward(q, k, v, pattern.rows, pattern.columns, lengths, pattern.block, causal, softmax)[0]


def _as_int32(lengths: Tensor, seqlen: int) -> Tensor:
    """Without wrapping around: kernels clamp what is int32."""
    return lengths.clamp(0, seqlen).int() if lengths.dtype == torch.int64 else lengths


def _check(q: Tensor, k: Tensor, v: Tensor, pattern: BlockPattern, softmax: str, lengths: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        shapes = [list(t.shape) for t in (q, k, v)]
        raise ValueError(f"q, k, v must be [batch, heads, seqlen, head_dim], k and v alike, not {shapes}")
    batch, heads, seqlen, head_dim = q.shape
    if (k.shape[0], *k.shape[2:]) != (batch, seqlen, head_dim):
        raise ValueError(
            f"k is {list(k.shape)}; with q {list(q.shape)} it must be [{batch}, heads_kv, {seqlen}, {head_dim}]"
        )
    if not head_dim or not k.shape[1]:
        raise ValueError(f"head_dim and key heads must be positive, not {head_dim} and {k.shape[1]}")
    if heads % k.shape[1]:
        raise ValueError(f"{heads} query heads are no multiple of {k.shape[1]} key heads")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32) or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v must share float16, bfloat16 or float32, not {q.dtype}, {k.dtype}, {v.dtype}")
    block, blocks = pattern.block, -(-seqlen // pattern.block)
    if len(pattern.rows) not in (1, heads):
        raise ValueError(f"there are {len(pattern.rows)} patterns for {heads} heads; there must be 1 or {heads}")
    if pattern.blocks != blocks:
        raise ValueError(
            f"the pattern has {pattern.blocks} x {pattern.blocks} blocks, but seqlen {seqlen} in blocks of "
            f"{block} has {blocks} x {blocks}"
        )
    if softmax not in ("renormalised", "pruned_as_zero"):
        raise ValueError(f"softmax must be renormalised or pruned_as_zero, not {softmax!r}")
    if lengths is not None and (lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64)):
        raise ValueError(f"lengths must be integers [{batch}], not {lengths.dtype} {list(lengths.shape)}")
    devices = {t.device for t in (q, k, v, pattern.rows, lengths) if t is not None}
    if len(devices) > 1:
        raise ValueError(f"all tensors must be on one device, not {', '.join(sorted(map(str, devices)))}")
    if q.is_cuda and (reason := attention.refusal(q, block)):
        raise ValueError(reason)


@torch.library.custom_op("voltabench::block_sparse_attention", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    columns: Tensor,
    lengths: Tensor | None,
    block: int,
    causal: bool,
    softmax: str,
) -> tuple[Tensor, Tensor]:
    """The output and the logarithm of the denominators; `columns` are for the backward."""
    return reference.forward(q, k, v, rows, lengths, block=block, causal=causal, softmax=softmax)


@_forward.register_kernel("cuda")
def _(q, k, v, rows, columns, lengths, block, causal, softmax):
    from impl.cuda.launch import launch

    options = {"block": block, "causal": causal, "softmax": softmax, "launch": launch}
    return attention.forward(q, k, v, rows, lengths, **options)


@_forward.register_fake
def _(q, *_):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("voltabench::block_sparse_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rows: Tensor,
    columns: Tensor,
    lengths: Tensor | None,
    block: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return reference.backward(dout, q, k, v, out, lse, rows, lengths, block=block, causal=causal)


@_backward.register_kernel("cuda")
def _(dout, q, k, v, out, lse, rows, columns, lengths, block, causal):
    from impl.cuda.launch import launch

    options = {"block": block, "causal": causal, "launch": launch}
    return attention.backward(dout, q, k, v, out, lse, rows, columns, lengths, **options)


@_backward.register_fake
def _(dout, q, k, v, *_):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output) -> None:
    q, k, v, rows, columns, lengths, ctx.block, ctx.causal, _softmax = inputs
    ctx.save_for_backward(q, k, v, *output, rows, columns, lengths)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, dout: Tensor, _dlse: Tensor):
    return (*_backward(dout, *ctx.saved_tensors, ctx.block, ctx.causal), *[None] * 6)


_forward.register_autograd(_differentiate, setup_context=_save)
