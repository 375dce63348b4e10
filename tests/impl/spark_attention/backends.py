"""The ways to compute SparkAttention's forward that must all agree: CPU op, emulated kernel, kernels on a GPU."""

from __future__ import annotations

import math

import pytest
from numpy import generic
from torch import Tensor

from impl.cuda import emulator
from impl.cuda.build import Kernel
from impl.spark_attention import reference
from impl.spark_attention.kernels.forward import (
    empty_outputs,
    forward_arguments,
    forward_grid,
    select_kernel,
    source_arch,
)

gpu = pytest.mark.gpu
emulated = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
CPU = ["reference"]
EMULATED_SM70, EMULATED_SM80 = EMULATED = [
    pytest.param(f"emulated {arch}", marks=emulated) for arch in ("sm_70", "sm_80")
]
GPU = [pytest.param("native", marks=gpu), pytest.param("sm_70", marks=gpu)]


def device_of(backend: str) -> str:
    return "cuda" if backend in ("native", "sm_70") else "cpu"


def forward(
    backend: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, accumulate: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """out and lse of `backend` for tensors on its device; a kernel's outputs are NaN before it runs."""
    scale = q.shape[-1] ** -0.5
    if backend == "reference":
        return reference.attention_forward(q, k, v, causal=causal, softmax_scale=scale, accumulate=accumulate)
    arch = source_arch(q.device) if backend == "native" else backend.removeprefix("emulated ")
    kernel, grid, arguments = kernel_call(q, k, v, arch, causal=causal, accumulate=accumulate)
    _launcher(backend)(kernel, grid, arguments)
    return outputs_of(arguments)


def kernel_call(
    q: Tensor, k: Tensor, v: Tensor, arch: str, *, causal: bool, accumulate: str = "fp32"
) -> tuple[Kernel, tuple[int, int, int], list[Tensor | generic]]:
    """Kernel written for `arch`, grid and arguments of a forward whose outputs are NaN before."""
    out, lse = (t.fill_(math.nan) for t in empty_outputs(q))
    kernel = select_kernel(q, k, v, accumulate, arch)
    arguments = forward_arguments(q, k, v, out, lse, causal, q.shape[-1] ** -0.5)
    return kernel, forward_grid(kernel, q), arguments


def outputs_of(arguments: list[Tensor | generic]) -> tuple[Tensor, Tensor]:
    """out and lse among the arguments of `kernel_call`."""
    return arguments[3], arguments[4]


def _launcher(backend: str):
    if backend.startswith("emulated"):
        return emulator.launch
    from impl.cuda.launch import launch

    return launch
