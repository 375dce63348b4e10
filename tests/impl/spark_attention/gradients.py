"""The gradients of a backward's launches, on the emulator and on a GPU, and the gate over them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.ops import OPS
from harness.verify import Gate
from impl.cuda import emulator
from impl.cuda.steps import run
from impl.spark_attention.kernels.call import Backward
from tests.impl.spark_attention.backends import forward

OP = OPS["attention"]
GRADIENTS = ("dq", "dk", "dv")
MANY_TILES = [(33, 2925), (31, 4250), (1023, 33), (1025, 65)]  # queries and keys, few of one


def case(**fields):
    return OP.Params(**{"direction": "backward", "batch": 1, "num_heads": 2, "head_dim": 64, **fields})


def launcher(device, **options):
    """`options` are the emulator's."""
    if device == "cpu":
        return lambda kernel, grid, arguments: emulator.launch(kernel, grid, arguments, **options)
    from impl.cuda.launch import launch

    return launch


def saved_by_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return forward("emulated sm_80" if q.device.type == "cpu" else "sm_80", q, k, v, causal=causal)


def steps_and_gradients(backward_steps, inputs, causal: bool) -> tuple[list, dict[str, Tensor]]:
    """The launches from what our forward saved, and the gradients that they will fill, NaN before."""
    q, k, v, dout = (inputs[name] for name in ("q", "k", "v", "dout"))
    into = [torch.full(t.shape, math.nan, dtype=t.dtype, device=t.device) for t in (q, k, v)]
    saved = saved_by_forward(q, k, v, causal)
    steps = backward_steps(Backward(dout, q, k, v, *saved, *into, causal, q.shape[-1] ** -0.5))
    return steps, dict(zip(GRADIENTS, into, strict=True))


def gradients(backward_steps, inputs, causal: bool, **options) -> dict[str, Tensor]:
    steps, into = steps_and_gradients(backward_steps, inputs, causal)
    run(steps, launcher(inputs["q"].device.type, **options))
    return into


def check(backward_steps, params, inputs, **options) -> dict[str, Tensor]:
    """Hold the gradients of these inputs to the gate, and return them."""
    got = gradients(backward_steps, inputs, params.causal, **options)
    verdict = Gate(OP, params, inputs).check(got)
    assert verdict.passed, verdict.reason
    return got
