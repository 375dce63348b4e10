"""Gradients by CUDA graphs: one launch for a computation of many kernels, whose launches take longer than they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WARM_UPS = 3  # what is compiled, chosen or allocated in a first call must not be in a capture

Outputs = tuple[Tensor | None, ...]
Compute = Callable[[Tensor, Hashable], Outputs]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    argument: Tensor
    outputs: Outputs
    gradients: list[Tensor | None]


class StepGraphs:
    """What `compute(argument, variant)` gives, bit for bit, by a graph for each variant, captured when first met.

    compute: leaves gradients in the `grad` of `parameters`, whatever they held, and waits for nothing on the GPU.
    argument: a CUDA tensor, always of the same shape and dtype. All else that is read, the parameters too, is read
    where it lay at the capture. Random numbers go on from the generator's state, which a capture does not advance.
    Outputs and gradients lie in the graph, and stay until its next replay.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device):
        self._parameters = list(parameters)
        self._stream = torch.cuda.Stream(device)  # one for all captures: libraries keep a workspace for each stream
        self.clear()

    def clear(self) -> None:
        """Drop the graphs, their gradients too, whose memory is then free."""
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()  # one for all: no two replays run at once
        self._set_gradients([None] * len(self._parameters))

    def __call__(self, compute: Compute, argument: Tensor, variant: Hashable) -> Outputs:
        if variant not in self._captured:
            self._captured[variant] = self._capture(compute, argument.clone(), variant)
        captured = self._captured[variant]
        captured.argument.copy_(argument)
        captured.graph.replay()
        self._set_gradients(captured.gradients)
        return captured.outputs

    def _capture(self, compute: Compute, argument: Tensor, variant: Hashable) -> _Captured:
        self._stream.wait_stream(torch.cuda.current_stream(argument.device))
        with torch.random.fork_rng([argument.device]), torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                compute(argument, variant)
        self._set_gradients([None] * len(self._parameters))  # the capture then makes its own
        graph = torch.cuda.CUDAGraph()
        options = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(graph, **options):
            outputs = compute(argument, variant)
        return _Captured(graph, argument, outputs, [parameter.grad for parameter in self._parameters])

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
