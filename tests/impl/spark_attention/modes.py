"""What users do with a differentiable function: compile it, run it under autocast, capture it in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def both(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The result, and the gradients of its squares' sum."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


def assert_compiles(function: Function, inputs: Sequence[Tensor]) -> None:
    """As one graph, forward and backward."""
    backend = "inductor" if inputs[0].is_cuda else "aot_eager"
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for got, expected in zip(both(compiled, inputs), both(function, inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())


def assert_autocasts(function: Function, inputs: Sequence[Tensor]) -> None:
    """float32 inputs are computed in autocast's type, and get gradients of their own."""
    inputs = [t.float() for t in inputs]
    with torch.autocast(inputs[0].device.type, torch.bfloat16):
        out, *gradients = both(function, inputs)
    assert out.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 and g.isfinite().all() and g.any() for g in gradients)
    torch.testing.assert_close(out.float(), function(*(t.half() for t in inputs)).float(), rtol=0, atol=3e-2)


def assert_captured(function: Function, inputs: Sequence[Tensor]) -> None:
    """Forward and backward; a replay takes what the inputs hold then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(function, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = both(function, inputs)
    for tensor in inputs:
        tensor.normal_()
    for tensor in outputs:
        tensor.fill_(torch.nan)
    graph.replay()
    assert all(map(torch.equal, outputs, both(function, inputs)))
