"""PyTorch's scaled_dot_product_attention, held to one of its backends per contender."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from baselines._attention import SHARED, below
from harness.contender import Prepared, Target, Unsupported
from harness.exchange import AttentionContender, Call
from harness.lazy import lazy_import
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import Forward, attention_call
from harness.ops.masks import causal_mask

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class Sdpa(AttentionContender):
    """`is_causal` aligns top-left, so a causal case of unequal lengths gets a boolean mask instead."""

    role = "baseline"
    source = "torch.nn.functional.scaled_dot_product_attention"
    sources = (*SHARED, "harness/ops/masks.py")
    backend: ClassVar[str]  # name in torch.nn.attention.SDPBackend
    on_cpu: ClassVar[bool] = False

    def unavailable(self, target: Target) -> str | None:
        if not target.is_cuda and not self.on_cpu:
            return f"PyTorch has the {self.backend} backend on NVIDIA GPUs only; run on one"
        return None

    def function(self, params: AttentionParams, target: Target) -> Forward:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, self.backend)
        square = params.seqlen_q == params.seqlen_k
        mask = None
        if params.causal and not square:
            mask = causal_mask(range(params.seqlen_q), params.seqlen_q, params.seqlen_k, target.device)
        options = {
            "attn_mask": mask,
            "is_causal": params.causal and square,
            "enable_gqa": params.num_heads != params.num_heads_kv,
        }

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        return forward

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        run = self.first_call(lambda: attention_call(self.function(params, target), inputs))
        note = None if target.is_cuda else "PyTorch's CPU implementation of this backend"
        return Prepared(run, backend="library", note=note)

    def first_call(self, make: Callable[[], Call]) -> Call:
        """cuDNN plans in it. PyTorch's refusal, whose reason is in its warnings, becomes Unsupported."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return super().first_call(make)
            except RuntimeError as error:
                if not str(error).startswith(("No available kernel", "No viable backend")):
                    raise
                # One warning introduces a backend, the next says why it is refused; others name disabled backends.
                reasons = [str(w.message).split(" (Triggered")[0] for w in caught]
                told = [r for r in reasons if "not used because" not in r and "disabled" not in r]
                raise Unsupported(f"PyTorch refuses it: {' '.join(told) or error}; use sdpa_math") from error


def _half_only(params: AttentionParams) -> str | None:
    return None if params.dtype != "float32" else "takes float16 and bfloat16 only; choose one of them"


class SdpaFlash(Sdpa):
    """FlashAttention-2 as PyTorch ships it."""

    name = "sdpa_flash"
    label = "SDPA flash (FA2)"
    summary = "PyTorch SDPA, FlashAttention-2 backend"
    backend = "FLASH_ATTENTION"
    on_cpu = True

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if not target.is_cuda:
            return None
        if params.causal and params.seqlen_q != params.seqlen_k:
            return "takes no mask, and its is_causal aligns top-left; use equal lengths or sdpa_efficient"
        if params.head_dim > 256:
            return f"head_dim {params.head_dim} is over its limit of 256; use sdpa_efficient"
        return below(target, (8, 0), "FlashAttention-2", "sdpa_efficient") or _half_only(params)


class SdpaEfficient(Sdpa):
    """The CUTLASS fused attention; the only fused backend that runs on Volta."""

    name = "sdpa_efficient"
    label = "SDPA efficient"
    summary = "PyTorch SDPA, memory-efficient (CUTLASS) backend"
    backend = "EFFICIENT_ATTENTION"

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.num_heads != params.num_heads_kv:
            return "takes no grouped heads; use num_heads_kv = num_heads or sdpa_math"
        multiple = 4 if params.dtype == "float32" else 8
        if params.head_dim % multiple:
            return f"head_dim {params.head_dim} is no multiple of {multiple}; pad it or use sdpa_math"
        return None


class SdpaCudnn(Sdpa):
    """cuDNN's fused attention."""

    name = "sdpa_cudnn"
    label = "SDPA cuDNN"
    summary = "PyTorch SDPA, cuDNN backend"
    backend = "CUDNN_ATTENTION"

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.head_dim % 8 or params.head_dim > 128:
            return f"head_dim {params.head_dim} is no multiple of 8 up to 128; use sdpa_math"
        return below(target, (8, 0), "cuDNN attention", "sdpa_efficient") or _half_only(params)


class SdpaMath(Sdpa):
    """Unfused, and upcast to float32: for orientation, not a fair baseline."""

    name = "sdpa_math"
    label = "SDPA math"
    summary = "PyTorch SDPA, math backend: unfused and upcast to float32, so no fair baseline"
    backend = "MATH"
    on_cpu = True
