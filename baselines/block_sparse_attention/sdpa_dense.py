"""Dense attention beside the block-sparse contenders: the yardstick that sparsity has to beat."""

from __future__ import annotations

from baselines.attention import sdpa
from harness.contender import Contender
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams

torch = lazy_import("torch")


class DenseYardstick(Contender):
    """Ignores the pattern, and is checked as the case that keeps every block."""

    op = "block_sparse_attention"
    sources = ("baselines/block_sparse_attention/sdpa_dense.py",)

    def reference_case(self, params: BlockSparseParams, inputs: Tensors) -> tuple[BlockSparseParams, Tensors]:
        everything = torch.ones_like(inputs["pattern"])
        return params.model_copy(update={"density": 1.0}), {**inputs, "pattern": everything}


class SdpaDenseCudnn(DenseYardstick, sdpa.SdpaCudnn):
    """cuDNN, dense."""

    name = "sdpa_dense_cudnn"
    label = "Dense SDPA cuDNN"
    summary = "PyTorch SDPA, cuDNN backend, all blocks: the dense yardstick"
    sources = (*sdpa.Sdpa.sources, "baselines/attention/sdpa.py")


class SdpaDenseFlash(DenseYardstick, sdpa.SdpaFlash):
    """FlashAttention-2, dense."""

    name = "sdpa_dense_flash"
    label = "Dense SDPA flash (FA2)"
    summary = "PyTorch SDPA, FlashAttention-2 backend, all blocks: the dense yardstick"
    sources = (*sdpa.Sdpa.sources, "baselines/attention/sdpa.py")
