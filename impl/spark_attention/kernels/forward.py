"""Launch geometry and arguments of the forward kernels (arguments.cuh), and the op on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import rows_aligned, strides
from impl.cuda.tensor_map import TensorMap
from impl.spark_attention.extras import NONE, Extras
from impl.spark_attention.kernels import forward_sm90, sm70, sm80
from impl.spark_attention.kernels.call import batch_parts, shape_of
from impl.spark_attention.kernels.extras import Features, extra_arguments, features_of

MAX_HEAD_DIM = 128
_SOURCES = {"sm_70": sm70, "sm_80": sm80}

Call = tuple[Kernel, tuple[int, int, int], list[Tensor | TensorMap | np.generic]]


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    launch: Callable[..., None],
    *,
    causal: bool,
    softmax_scale: float,
    accumulate: str,
    kernel_arch: str | None,
    extras: Extras = NONE,
) -> tuple[Tensor, Tensor]:
    """`reference.attention_forward` by the kernel for the tensors' device, or by the one written for `kernel_arch`.

    `launch(kernel, grid, arguments)` is `impl.cuda.launch.launch`, or the emulator's. Raises ValueError as
    `forward_call` does.
    """
    out, lse = empty_outputs(q)
    arch = kernel_arch or source_arch(q.device)
    options = {"causal": causal, "softmax_scale": softmax_scale, "accumulate": accumulate, "arch": arch}
    check_supported(q.dtype, accumulate, arch, extras)
    for first, part in batch_parts(q, k, v, out, lse) if q.numel() else ():
        launch(*forward_call(*part, **options, extras=extras, first_batch=first))
    return out, lse


def empty_outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised out, contiguous [batch, heads, seqlen_q, head_dim], and lse, float32 [batch, heads, seqlen_q]."""
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def source_arch(device: torch.device) -> str:
    """The newest architecture of ours whose instructions `device` has. A CPU emulates any: it gets "sm_80", which
    serves most GPUs."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)
    return "sm_70" if capability < (8, 0) else "sm_90a" if capability == (9, 0) else "sm_80"


def forward_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
    accumulate: str = "fp32",
    arch: str,
    extras: Extras = NONE,
    first_batch: int = 0,
) -> Call:
    """Kernel, grid and arguments (arguments.cuh) of the forward into `out` and `lse` by the kernel written for `arch`.

    The sm_80 kernel stands in for the sm_90a one where that does not take the tensors, a mask or dropout. The tensors
    but those of `extras` begin with sequence `first_batch`. Raises ValueError as `check_supported` does.
    """
    check_supported(q.dtype, accumulate, arch, extras)
    if arch == "sm_90a":
        if not extras and forward_sm90.takes(q, k, v, out):
            return forward_sm90.forward_call(q, k, v, out, lse, causal=causal, softmax_scale=softmax_scale)
        arch = "sm_80"
    s = shape_of(q, k, causal)
    aligned = s.head_dim % 8 == 0 and all(map(rows_aligned, (q, k, v)))
    variant = q.dtype == torch.bfloat16 or accumulate == "fp16"
    kernel = _forward_kernel(arch, s.padded_dim, aligned, variant, features_of(extras))
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.group, s.causal_offset)
    arguments = [*(q, k, v, out, lse), *strides(q, k, v, out), *map(np.int32, sizes), np.float32(softmax_scale)]
    arguments += extra_arguments(extras, first_batch)
    return kernel, (-(-s.seqlen_q // _SOURCES[arch].BLOCK_M), s.heads, s.batch), arguments


def check_supported(dtype: torch.dtype, accumulate: str, arch: str, extras: Extras = NONE) -> None:
    """Raises ValueError when no kernel written for `arch` takes `dtype`, accumulates so, or does with `extras`."""
    if arch == "sm_70" and dtype == torch.bfloat16:
        raise ValueError("bfloat16 needs compute capability 8.0 or newer; the Volta kernel takes float16")
    if arch != "sm_70" and accumulate == "fp16":
        raise ValueError("accumulate='fp16' is a variant of the Volta kernel; this GPU's kernel accumulates in fp32")
    if extras and accumulate == "fp16":
        raise ValueError("accumulate='fp16' goes with neither mask nor dropout")


@functools.cache
def _forward_kernel(arch: str, padded_dim: int, aligned: bool, variant: bool, features: Features) -> Kernel:
    return _SOURCES[arch].forward_kernel(padded_dim, aligned, variant, features)
