"""Launch geometry and arguments of the forward kernels (arguments.cuh), and the op on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import rows_aligned
from impl.spark_attention.kernels import sm70, sm80

MAX_HEAD_DIM = 128
_MAX_GRID_BATCH = 65535  # blockIdx.z
_SOURCES = {"sm_70": sm70, "sm_80": sm80}


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
) -> tuple[Tensor, Tensor]:
    """`reference.attention_forward` by the kernel for the tensors' device, or by the one written for `kernel_arch`.

    `launch(kernel, grid, arguments)` is `impl.cuda.launch.launch`, or the emulator's. Raises ValueError as
    `select_kernel` does.
    """
    out, lse = empty_outputs(q)
    kernel = select_kernel(q, k, v, accumulate, kernel_arch or source_arch(q.device))
    if q.numel() == 0:
        return out, lse
    for first in range(0, len(q), _MAX_GRID_BATCH):
        part = slice(first, first + _MAX_GRID_BATCH)
        tensors = (q[part], k[part], v[part], out[part], lse[part])
        launch(kernel, forward_grid(kernel, q[part]), forward_arguments(*tensors, causal, softmax_scale))
    return out, lse


def empty_outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised out, contiguous [batch, heads, seqlen_q, head_dim], and lse, float32 [batch, heads, seqlen_q]."""
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def source_arch(device: torch.device) -> str:
    """The architecture whose source serves `device`: on a CPU, which emulates any, the newest."""
    return "sm_70" if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0) else "sm_80"


def select_kernel(q: Tensor, k: Tensor, v: Tensor, accumulate: str, arch: str) -> Kernel:
    """The kernel written for `arch` ("sm_70" or "sm_80") that takes these tensors.

    Raises ValueError when `arch` has none for the element type or accumulator.
    """
    check_dtype(q.dtype, arch)
    head_dim, bfloat16 = q.shape[-1], q.dtype == torch.bfloat16
    if arch == "sm_80" and accumulate == "fp16":
        raise ValueError("accumulate='fp16' is a variant of the Volta kernel; this GPU's kernel accumulates in fp32")
    aligned = head_dim % 8 == 0 and all(rows_aligned(t) for t in (q, k, v))
    return _forward_kernel(arch, 64 if head_dim <= 64 else 128, aligned, bfloat16 or accumulate == "fp16")


def check_dtype(dtype: torch.dtype, arch: str) -> None:
    """Raises ValueError when the kernels written for `arch` do not take `dtype`."""
    if arch == "sm_70" and dtype == torch.bfloat16:
        raise ValueError("bfloat16 needs compute capability 8.0 or newer; the Volta kernel takes float16")


@functools.cache
def _forward_kernel(arch: str, padded_dim: int, aligned: bool, variant: bool) -> Kernel:
    return _SOURCES[arch].forward_kernel(padded_dim, aligned, variant)


def forward_grid(kernel: Kernel, q: Tensor) -> tuple[int, int, int]:
    """Blocks along query tiles, heads and batch."""
    batch, heads, seqlen_q, _ = q.shape
    return -(-seqlen_q // _SOURCES[kernel.arch].BLOCK_M), heads, batch


def forward_arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, softmax_scale: float
) -> list[Tensor | np.generic]:
    """The kernel's arguments in the order of FORWARD_PARAMETERS."""
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    strides = [np.int64(stride) for tensor in (q, k, v, out) for stride in tensor.stride()[:3]]
    sizes = (seqlen_q, seqlen_k, q.shape[3], q.shape[1], q.shape[1] // k.shape[1], causal_offset)
    return [q, k, v, out, lse, *strides, *map(np.int32, sizes), np.float32(softmax_scale)]
