"""Memory beside the inputs: linear in the sequence length, where scores would be quadratic."""

from __future__ import annotations

import functools

import pytest
import torch

from impl.cuda.launch import launch
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.forward import attention_forward, source_arch
from tests.impl.spark_attention.backends import GPU

each_direction = pytest.mark.parametrize("direction", ["forward", "backward"])


def inputs_and_call(direction: str, seqlen: int, device: str):
    q, k, v, dout, out = (torch.randn(1, 2, seqlen, 64, device=device).half() for _ in range(5))
    options = {"causal": True, "softmax_scale": 0.125}
    if direction == "forward":
        return [q, k, v], functools.partial(attention_forward, q, k, v, accumulate="fp32", **options)
    inputs = [dout, q, k, v, out, torch.zeros(1, 2, seqlen, device=device)]
    return inputs, functools.partial(attention_backward, *inputs, **options)


def arch_option(direction: str, arch: str) -> dict[str, str]:
    return {"kernel_arch" if direction == "forward" else "arch": arch}


@each_direction
@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90a"])
def test_what_launches_take_is_linear_in_the_length(arch, direction):
    def taken(seqlen: int) -> int:
        inputs, call = inputs_and_call(direction, seqlen, "cpu")
        tensors = {}

        def note(_kernel, _grid, arguments) -> None:
            given = [getattr(argument, "tensor", argument) for argument in arguments]
            tensors.update({t.data_ptr(): t for t in given if isinstance(t, torch.Tensor)})

        results = call(launch=note, **arch_option(direction, arch))
        assert {t.data_ptr() for t in results} <= set(tensors)
        theirs = {t.data_ptr() for t in inputs}
        return sum(t.nbytes for address, t in tensors.items() if address not in theirs)

    short, long = taken(1024), taken(4096)
    assert 3.9 * short < long <= 4 * short


@each_direction
@pytest.mark.parametrize("backend", GPU)
def test_the_peak_is_linear_in_the_length(backend, direction):
    """Of 16 times the rows at most 16 times the bytes, and less than a tenth of what the scores would take."""
    arch = source_arch(torch.device("cuda")) if backend == "native" else backend

    def peak(seqlen: int) -> int:
        _, call = inputs_and_call(direction, seqlen, "cuda")
        run = functools.partial(call, launch=launch, **arch_option(direction, arch))
        run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before

    short, long = peak(1024), peak(16384)
    assert long <= 16 * short
    assert long < 2 * 2 * 16384**2 / 10
