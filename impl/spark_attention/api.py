"""SparkAttention for users: fused multi-head attention as a torch op."""

from __future__ import annotations

from numbers import Real
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from impl.spark_attention import reference
from impl.spark_attention.extras import Extras
from impl.spark_attention.kernels import backward, forward
from impl.spark_attention.kernels.call import MAX_GRID
from impl.spark_attention.kernels.forward import MAX_HEAD_DIM, source_arch

DTYPES = (torch.float16, torch.bfloat16)
KERNEL_ARCHS = ("sm_70", "sm_80", "sm_90a")
_FLOAT32 = torch.finfo(torch.float32)


def spark_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_lse: bool = False,
    accumulate: Literal["fp32", "fp16"] = "fp32",
    kernel_arch: Literal["sm_70", "sm_80", "sm_90a"] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T * softmax_scale) v without the scores ever leaving the chip (Xu et al. 2025).

    q [batch, heads, seqlen_q, head_dim], k and v [batch, heads_kv, seqlen_k, head_dim], float16 or bfloat16, with
    any strides but a last one of 1; head_dim at most 128; heads a multiple of heads_kv, and query head h reads
    head h // (heads / heads_kv). `softmax_scale` is head_dim ** -0.5 when None. A causal mask is aligned
    bottom-right: query i sees the keys j <= i + seqlen_k - seqlen_q; a row that sees none is 0.

    `mask` broadcasts to [batch, heads, seqlen_q, seqlen_k]. A boolean one hides keys where it is False; another is
    added to the scaled scores, -inf hides, and -4096 or less takes the score's place (a row of finfo.min is uniform);
    no gradient goes to it. `dropout_p` is the share of probabilities dropped, to 1/65536, the others are divided by
    the share kept; which ones depends on batch, head, row and column and on `seed`, an integer or int64 scalar on q's
    device, or drawn from torch's generator for that device. Under autocast, floating q, k, v are cast to its type.

    Returns out, contiguous with q's shape and type, and with `return_lse` also the natural logarithm of the
    softmax denominators, float32 [batch, heads, seqlen_q], not differentiable, -inf for a row that sees no key.
    `accumulate="fp16"` is a less exact variant of the Volta kernel (VOLTA.md). `kernel_arch` picks the kernel by the
    architecture it was written for, to check one on a newer GPU. The backward accumulates in fp32 and is
    the same bit for bit from run to run.

    Raises TypeError or ValueError that says what is wrong, NotImplementedError under forward-mode differentiation.
    """
    check_tensors("batch, heads, seqlen, head_dim", q=q, k=k, v=v)
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, not {type(causal).__name__}")
    q, k, v = _autocast(q, k, v)
    _check(q, k, v, accumulate, kernel_arch)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else _number("softmax_scale", softmax_scale)
    if not _FLOAT32.tiny <= scale <= _FLOAT32.max:  # which kernels take it as
        raise ValueError(f"softmax_scale must be positive and finite in float32, not {softmax_scale}")
    mask, seed = _mask(mask, q, k), _seed(seed, _number("dropout_p", dropout_p), q.device)
    out, lse = _forward(q, k, v, mask, seed, causal, scale, float(dropout_p), accumulate, kernel_arch)
    return (out, lse) if return_lse else out


def check_tensors(layout: str, **tensors: Tensor) -> None:
    """Raises TypeError for what is no dense tensor, ValueError for one that does not have the `layout`'s four axes,
    NotImplementedError for one with a tangent, which the op would lose."""
    for name, tensor in tensors.items():
        _check_dense(name, tensor)
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be [{layout}], not {list(tensor.shape)}")
        if not torch.compiler.is_compiling() and unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"spark_attention has no forward-mode derivative; {name} has a tangent")


def _check_dense(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, not {tensor.layout}")


def _number(name: str, value: float) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    device = tensors[0].device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def _mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """[1 or batch, 1 or heads, 1 or seqlen_q, seqlen_k], of a type and stride that kernels take."""
    if mask is None:
        return None
    _check_dense("mask", mask)
    whole = (*q.shape[:3], k.shape[2])
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if mask.ndim > 4 or any(size not in (1, full) for size, full in zip(shape, whole, strict=True)):
        raise ValueError(f"mask must broadcast to {list(whole)}, which {list(mask.shape)} does not")
    if mask.requires_grad:
        raise ValueError("mask must not require a gradient: it gets none")
    if mask.device != q.device:
        raise TypeError(f"mask is on {mask.device}, but q is on {q.device}")
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        if not mask.is_floating_point():
            raise TypeError(f"mask must be boolean or floating point, not {mask.dtype}")
        mask = mask.float()
    mask = mask.view(shape).expand(*shape[:3], whole[3])
    return mask if mask.stride(-1) == 1 else mask.contiguous()


def _seed(seed: int | Tensor | None, dropout_p: float, device: torch.device) -> Tensor | None:
    """int64 scalar on `device`; None without dropout."""
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be at least 0 and below 1, not {dropout_p}")
    if dropout_p == 0:
        return None
    if seed is None:
        return torch.randint(2**63 - 1, (), device=device)
    if not isinstance(seed, Tensor):
        if not (isinstance(seed, int) and -(2**63) <= seed < 2**63):
            raise TypeError(f"seed must be an integer of 64 bits or such a tensor, not {seed!r}")
        return torch.full((), seed, dtype=torch.int64, device=device)
    if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device != device:
        raise TypeError(f"seed must be one int64 on {device}, not {list(seed.shape)} {seed.dtype} on {seed.device}")
    return seed


def _check(q: Tensor, k: Tensor, v: Tensor, accumulate: str, kernel_arch: str | None) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
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
    if heads > MAX_GRID:
        raise ValueError(f"query heads ({heads}) must be at most {MAX_GRID}, a launch's limit; the batch may be larger")
    if kernel_arch not in (None, *KERNEL_ARCHS):
        raise ValueError(f"kernel_arch must be one of {', '.join(KERNEL_ARCHS)} or None, not {kernel_arch!r}")
    if accumulate not in ("fp32", "fp16"):
        raise ValueError(f"accumulate must be 'fp32' or 'fp16', not {accumulate!r}")
    if accumulate == "fp16" and q.dtype != torch.float16:
        raise TypeError(f"accumulate='fp16' needs float16 inputs, not {q.dtype}")


@torch.library.custom_op("voltabench::spark_attention_forward", mutates_args=(), device_types="cpu")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    softmax_scale: float,
    dropout_p: float,
    accumulate: str,
    kernel_arch: str | None,
) -> tuple[Tensor, Tensor]:
    extras = _extras(q, k, mask, seed, dropout_p)
    forward.check_supported(q.dtype, accumulate, kernel_arch or ("sm_70" if accumulate == "fp16" else "sm_80"), extras)
    options = {"causal": causal, "softmax_scale": softmax_scale, "extras": extras}
    with torch.autocast("cpu", enabled=False):  # else its products of float32 would be cast too
        out, lse = reference.attention_forward(q, k, v, accumulate=accumulate, **options)
    return out.contiguous(), lse


@_forward.register_kernel("cuda")
def _forward_cuda(q, k, v, mask, seed, causal, softmax_scale, dropout_p, accumulate, kernel_arch):
    from impl.cuda.launch import launch

    options = {"causal": causal, "softmax_scale": softmax_scale, "extras": _extras(q, k, mask, seed, dropout_p)}
    return forward.attention_forward(q, k, v, launch, accumulate=accumulate, kernel_arch=kernel_arch, **options)


@_forward.register_fake
def _forward_fake(q: Tensor, *_) -> tuple[Tensor, Tensor]:
    return forward.empty_outputs(q)


@torch.library.custom_op("voltabench::spark_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    softmax_scale: float,
    dropout_p: float,
    kernel_arch: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    options = {"causal": causal, "softmax_scale": softmax_scale, "extras": _extras(q, k, mask, seed, dropout_p)}
    with torch.autocast("cpu", enabled=False):
        return reference.attention_backward(dout, q, k, v, out, lse, **options)


@_backward.register_kernel("cuda")
def _backward_cuda(dout, q, k, v, out, lse, mask, seed, causal, softmax_scale, dropout_p, kernel_arch):
    from impl.cuda.launch import launch

    options = {"causal": causal, "softmax_scale": softmax_scale, "extras": _extras(q, k, mask, seed, dropout_p)}
    arch = kernel_arch or source_arch(q.device)
    return backward.attention_backward(dout, q, k, v, out, lse, launch=launch, arch=arch, **options)


@_backward.register_fake
def _backward_fake(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))


def _extras(q: Tensor, k: Tensor, mask: Tensor | None, seed: Tensor | None, dropout_p: float) -> Extras:
    return Extras(None if mask is None else mask.expand(*q.shape[:3], k.shape[2]), dropout_p, seed)


def _save(ctx, inputs, output) -> None:
    q, k, v, mask, seed, causal, softmax_scale, dropout_p, _, kernel_arch = inputs
    out, lse = output
    ctx.options = causal, softmax_scale, dropout_p, kernel_arch
    ctx.save_for_backward(q, k, v, out, lse, mask, seed)
    ctx.mark_non_differentiable(lse)


def _gradients(ctx, dout: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(dout, *ctx.saved_tensors, *ctx.options), *[None] * 7


_forward.register_autograd(_gradients, setup_context=_save)
