"""How a contender's attention function becomes the call that is timed: the forward, the backward alone, or a training
step of the model that it stands in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.lazy import lazy_import
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.training_step import TrainingStepParams

torch = lazy_import("torch")

Forward = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


def attention_call(forward: Forward, inputs: Tensors) -> Callable[[], dict[str, Tensor]]:
    """`run` of a Prepared: the forward of q, k, v [batch, heads, seqlen, head_dim]; when the inputs have "dout",
    the forward is done here, once, and `run` is its backward alone.

    Autograd runs a backward on the stream of its forward: prepare on the stream that is timed or captured.
    """
    if "dout" not in inputs:

        def run_forward() -> dict[str, Tensor]:
            with torch.no_grad():
                return {"out": forward(inputs["q"], inputs["k"], inputs["v"])}

        return run_forward

    leaves = [inputs[name].detach().requires_grad_() for name in ("q", "k", "v")]
    out = forward(*leaves)

    def run_backward() -> dict[str, Tensor]:
        gradients = torch.autograd.grad(out, leaves, inputs["dout"], retain_graph=True)
        return dict(zip(("dq", "dk", "dv"), gradients, strict=True))

    return run_backward


def training_call(attention: Forward, params: TrainingStepParams, inputs: Tensors) -> Callable[[], dict[str, Tensor]]:
    """`run` of a Prepared: one step of a model of its own, with a learning rate of 0 and a loss scale that stays, so
    that every call does the same. `inputs` are those of the op training_step."""
    from harness.ops.training_step import split
    from harness.ops.transformer import Training, with_weights

    batch, weights = split(inputs)
    model = with_weights(params.shape, weights, torch.float32, attention)
    training = Training(model, getattr(torch, params.dtype), learning_rate=0.0, scale_steps=2**31 - 1)
    return lambda: training.step(*batch)
