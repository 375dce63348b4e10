"""What lies beside the tensors, NaN here, changes no bit of a result: columns past head_dim, rows past the last."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.forward import attention_forward, source_arch
from tests.impl.spark_attention.backends import EMULATED, GPU, device_of
from tests.impl.spark_attention.gradients import launcher


def amid_nan(seqlen: int, head_dim: int, width: int, device: str) -> Tensor:
    """[2, 3, seqlen, head_dim] within rows of `width`, with rows before and after."""
    room = torch.full((2, 3, seqlen + 40, width), math.nan, dtype=torch.float16, device=device)
    return room[:, :, 20 : 20 + seqlen, :head_dim].normal_()


@pytest.mark.parametrize("backend", [*EMULATED, *GPU])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("head_dim", "width"), [(64, 64), (40, 64), (59, 64), (72, 128), (111, 112)])
def test_neighbours_are_not_read(backend, head_dim, width, causal):
    device = device_of(backend)
    arch = source_arch(torch.device(device)) if backend == "native" else backend.removeprefix("emulated ")
    launch, options = launcher(device), {"causal": causal, "softmax_scale": head_dim**-0.5}

    def run(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[Tensor]:
        out, lse = attention_forward(q, k, v, launch, accumulate="fp32", kernel_arch=arch, **options)
        return [out, lse, *attention_backward(dout, q, k, v, out, lse, launch=launch, arch=arch, **options)]

    tensors = [amid_nan(seqlen, head_dim, width, device) for seqlen in (70, 90, 90, 70)]
    packed = [t.contiguous() for t in tensors]
    assert all(map(torch.equal, run(*tensors), run(*packed)))
