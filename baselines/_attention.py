"""What the attention baselines share: calling a forward or only its backward, and asking for a CUDA package."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contender import Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.attention import AttentionParams

torch = lazy_import("torch")

Forward = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
SHARED = "baselines/_attention.py"  # for Contender.sources


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


def seqlen_before_heads(function: Forward) -> Forward:
    """Call a function of [batch, seqlen, heads, head_dim] tensors with ours, as views."""

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    return forward


def has_empty_rows(params: AttentionParams) -> bool:
    """Whether the bottom-right causal mask leaves some query without a key."""
    return params.causal and params.seqlen_q > params.seqlen_k


def missing(target: Target, module: str, how: str) -> str | None:
    """Why a CUDA package cannot be used on `target` and `how` to get it, or None when it loads."""
    if not target.is_cuda:
        return f"needs an NVIDIA GPU; there: {how}"
    if importlib.util.find_spec(module.split(".")[0]) is None:
        return f"not installed: {how}"
    _preload_cuda_runtimes()
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        return f"does not load ({line}): {how}"
    return None


def _preload_cuda_runtimes() -> None:
    """Load every CUDA runtime that NVIDIA's wheels brought: an extension built for CUDA 12 then finds its
    libcudart.so.12 beside a torch of CUDA 13, and the other way round."""
    nvidia = importlib.util.find_spec("nvidia")
    for folder in nvidia.submodule_search_locations if nvidia else ():
        for library in sorted(Path(folder).glob("*/lib/libcudart.so.*")):
            ctypes.CDLL(str(library))


def below(target: Target, capability: tuple[int, int], what: str, instead: str) -> str | None:
    """A reason when the GPU is older than `capability`."""
    if target.is_cuda and target.capability < capability:
        has = ".".join(map(str, target.capability))
        return (
            f"{what} needs compute capability {capability[0]}.{capability[1]}, {target.name} has {has}; use {instead}"
        )
    return None
