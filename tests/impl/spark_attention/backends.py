"""The ways to compute SparkAttention's forward that must all agree: CPU op, emulated kernel, kernels on a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from impl.cuda import emulator
from impl.spark_attention import reference
from impl.spark_attention.kernels.forward import Call, empty_outputs, forward_call, source_arch

gpu = pytest.mark.gpu
from_ampere_on = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="needs sm_80 or newer"
)
emulated = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
CPU = ["reference"]
EMULATED_SM70, EMULATED_SM80, EMULATED_SM90 = EMULATED = [
    pytest.param(f"emulated {arch}", marks=emulated) for arch in ("sm_70", "sm_80", "sm_90a")
]
GPU = [
    pytest.param("native", marks=gpu),
    pytest.param("sm_70", marks=gpu),
    pytest.param("sm_80", marks=[gpu, from_ampere_on]),
]


def device_of(backend: str) -> str:
    return "cpu" if backend == "reference" or backend.startswith("emulated") else "cuda"


def forward(
    backend: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, accumulate: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """out and lse of `backend` for tensors on its device; a kernel's outputs are NaN before it runs."""
    if backend == "reference":
        options = {"softmax_scale": q.shape[-1] ** -0.5, "accumulate": accumulate}
        return reference.attention_forward(q, k, v, causal=causal, **options)
    arch = source_arch(q.device) if backend == "native" else backend.removeprefix("emulated ")
    call, outputs = kernel_call(q, k, v, arch, causal=causal, accumulate=accumulate)
    if q.numel():
        _launcher(backend)(*call)
    return outputs


def kernel_call(
    q: Tensor, k: Tensor, v: Tensor, arch: str, *, causal: bool, accumulate: str = "fp32"
) -> tuple[Call, tuple[Tensor, Tensor]]:
    """The call of the kernel written for `arch`, and the out and lse it will fill, which are NaN before."""
    outputs = tuple(t.fill_(math.nan) for t in empty_outputs(q))
    options = {"softmax_scale": q.shape[-1] ** -0.5, "accumulate": accumulate, "arch": arch}
    return forward_call(q, k, v, *outputs, causal=causal, **options), outputs


LAYOUTS = {  # so many tensors [2, 3, 70, 64] as users have them
    "qkv_unbind": lambda count, **options: [
        t.transpose(1, 2) for t in torch.randn(2, 70, count, 3, 64, **options).half().unbind(2)
    ],
    "transposed": lambda count, **options: [
        torch.randn(2, 70, 3, 64, **options).half().transpose(1, 2) for _ in range(count)
    ],
    # Rows that start at odd addresses: no 16-byte copies.
    "odd_rows": lambda count, **options: [torch.randn(2, 3, 70, 67, **options).half()[..., 1:65] for _ in range(count)],
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def sequences_far_apart(count: int, device: str | torch.device) -> list[Tensor]:
    """float16 [2, 2, 70, 64], whose sequences lie 2**31 elements apart in one buffer of 4.3 GB, of which a CPU takes
    the pages that are touched."""
    elements = 2 * 70 * 64
    buffer = torch.empty(2**31 + count * elements, dtype=torch.float16, device=device)
    for ends in (buffer[: count * elements], buffer[-count * elements :]):
        ends.normal_()
    return [buffer.as_strided((2, 2, 70, 64), (2**31, 70 * 64, 64, 1), i * elements) for i in range(count)]


def _launcher(backend: str):
    if backend.startswith("emulated"):
        return emulator.launch
    from impl.cuda.launch import launch

    return launch
