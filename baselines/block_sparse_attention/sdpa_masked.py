"""PyTorch's SDPA with the pattern expanded to a boolean mask: dense work, sparse result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselines._attention import SHARED
from baselines.block_sparse_attention._semantics import renormalised_only
from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams
from harness.ops.calls import attention_call
from harness.ops.masks import causal_mask, pattern_mask

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class SdpaMasked(Contender):
    """PyTorch's own choice of backend, recorded in `tuning`, less cuDNN: that one is wrong on rows that keep no key.

    Expanding the mask is set-up.
    """

    name = "sdpa_masked"
    op = "block_sparse_attention"
    role = "baseline"
    label = "SDPA masked"
    summary = "PyTorch SDPA with a boolean mask"
    source = "torch.nn.functional.scaled_dot_product_attention"
    sources = (*SHARED, "harness/ops/masks.py", "baselines/block_sparse_attention/_semantics.py")

    def unsupported(self, params: BlockSparseParams, target: Target) -> str | None:
        return renormalised_only(params)

    def prepare(self, params: BlockSparseParams, inputs: Tensors, target: Target) -> Prepared:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        rows = range(params.seqlen_q)
        mask = pattern_mask(inputs["pattern"], params.block, rows, params.seqlen_k)
        if params.causal:
            mask &= causal_mask(rows, params.seqlen_q, params.seqlen_k, target.device)
        options = {"attn_mask": mask[None], "enable_gqa": params.num_heads != params.num_heads_kv}

        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backends):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        run = attention_call(forward, inputs)
        with sdpa_kernel(backends):
            chosen = SDPBackend(torch._fused_sdp_choice(inputs["q"], inputs["k"], inputs["v"], **options))
        return Prepared(run, backend="library", tuning={"sdpa_backend": chosen.name})
