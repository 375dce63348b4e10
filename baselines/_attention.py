"""What the attention baselines share: layouts, limits of a GPU, and asking for a CUDA package."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from harness.contender import Target
from harness.ops.calls import Forward

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.attention import AttentionParams

SHARED = ("baselines/_attention.py", "harness/ops/calls.py")  # for Contender.sources


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
