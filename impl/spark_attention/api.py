"""SparkAttention for users: fused multi-head attention as a torch op."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from impl.spark_attention import reference
from impl.spark_attention.kernels import backward, forward
from impl.spark_attention.kernels.forward import MAX_HEAD_DIM, source_arch

DTYPES = (torch.float16, torch.bfloat16)
KERNEL_ARCHS = ("sm_70", "sm_80", "sm_90a")


def spark_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    accumulate: Literal["fp32", "fp16"] = "fp32",
    kernel_arch: Literal["sm_70", "sm_80", "sm_90a"] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T * softmax_scale) v without the scores ever leaving the chip (Xu et al. 2025).

    q [batch, heads, seqlen_q, head_dim], k and v [batch, heads_kv, seqlen_k, head_dim], float16 or bfloat16, with
    any strides but a last one of 1; head_dim at most 128; heads a multiple of heads_kv, and query head h reads
    head h // (heads / heads_kv). `softmax_scale` is head_dim ** -0.5 when None. A causal mask is aligned
    bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q; a row that sees none is 0.

    Returns out, contiguous with q's shape and type, and with `return_lse` also the natural logarithm of the
    softmax denominators, float32 [batch, heads, seqlen_q], not differentiable, -inf for a row that sees no key.
    `accumulate="fp16"` is a less exact variant of the Volta kernel (VOLTA.md). `kernel_arch` picks the kernel by the
    architecture it was written for, to check one on a newer GPU. The backward accumulates in fp32 and is
    the same bit for bit from run to run.

    Raises TypeError or ValueError that says what is wrong.
    """
    _check(q, k, v, accumulate, kernel_arch)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"softmax_scale must be positive and finite, not {softmax_scale}")
    out, lse = _forward(q, k, v, causal, scale, accumulate, kernel_arch)
    return (out, lse) if return_lse else out


def _check(q: Tensor, k: Tensor, v: Tensor, accumulate: str, kernel_arch: str | None) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be [batch, heads, seqlen, head_dim], not {list(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} must be float16 or bfloat16, not {tensor.dtype}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise TypeError(f"{name} is {tensor.dtype} on {tensor.device}, but q is {q.dtype} on {q.device}")
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name} must have stride 1 along head_dim, not {tensor.stride(-1)}; call .contiguous()")
    (batch, heads, _, head_dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    if k.shape != (batch, heads_kv, seqlen_k, head_dim) or v.shape != k.shape:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k, v))
        raise ValueError(f"q, k, v must agree in batch and head_dim, and k and v in all; got {shapes}")
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be 1 to {MAX_HEAD_DIM}, not {head_dim}")
    if heads_kv == 0 or heads % heads_kv:
        raise ValueError(f"query heads ({heads}) must be a multiple of key-value heads ({heads_kv})")
    if kernel_arch not in (None, *KERNEL_ARCHS):
        raise ValueError(f"kernel_arch must be one of {', '.join(KERNEL_ARCHS)} or None, not {kernel_arch!r}")
    if accumulate not in ("fp32", "fp16"):
        raise ValueError(f"accumulate must be 'fp32' or 'fp16', not {accumulate!r}")
    if accumulate == "fp16" and q.dtype != torch.float16:
        raise TypeError(f"accumulate='fp16' needs float16 inputs, not {q.dtype}")


@torch.library.custom_op("voltabench::spark_attention_forward", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float, accumulate: str, kernel_arch: str | None
) -> tuple[Tensor, Tensor]:
    out, lse = reference.attention_forward(q, k, v, causal=causal, softmax_scale=softmax_scale, accumulate=accumulate)
    return out.contiguous(), lse


@_forward.register_kernel("cuda")
def _forward_cuda(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float, accumulate: str, kernel_arch: str | None
) -> tuple[Tensor, Tensor]:
    from impl.cuda.launch import launch

    return forward.attention_forward(
        q, k, v, launch, causal=causal, softmax_scale=softmax_scale, accumulate=accumulate, kernel_arch=kernel_arch
    )


@_forward.register_fake
def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float, accumulate: str, kernel_arch: str | None
) -> tuple[Tensor, Tensor]:
    return forward.empty_outputs(q)


@torch.library.custom_op("voltabench::spark_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    softmax_scale: float,
    kernel_arch: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return reference.attention_backward(dout, q, k, v, out, lse, causal=causal, softmax_scale=softmax_scale)


@_backward.register_kernel("cuda")
def _backward_cuda(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    softmax_scale: float,
    kernel_arch: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    from impl.cuda.launch import launch

    return backward.attention_backward(
        *(dout, q, k, v, out, lse),
        causal=causal,
        softmax_scale=softmax_scale,
        launch=launch,
        arch=kernel_arch or source_arch(q.device),
    )


@_backward.register_fake
def _backward_fake(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    softmax_scale: float,
    kernel_arch: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))


def _save(ctx, inputs, output) -> None:
    q, k, v, causal, softmax_scale, _, kernel_arch = inputs
    ctx.options = causal, softmax_scale, kernel_arch
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse)
    ctx.mark_non_differentiable(lse)


def _gradients(ctx, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = _backward(dout, *ctx.saved_tensors, *ctx.options)
    return dq, dk, dv, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
