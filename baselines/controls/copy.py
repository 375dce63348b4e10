"""A device copy that moves as many bytes as an op must at least: the bandwidth this machine reaches in practice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops import OPS
from harness.ops.base import Tensors

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class _Copy(Contender):
    """Half of the floor is read and half written, in elements of two bytes. Checked bit for bit."""

    name = "copy"
    role = "control"
    label = "Copy"
    summary = "device copy of the bytes the op must move at least: the memory roofline"
    source = "torch.Tensor.copy_"

    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        count = OPS[self.op].bytes_floor(params) // 4
        generator = torch.Generator(target.device).manual_seed(params.seed)
        source = torch.randn(count, generator=generator, device=target.device, dtype=torch.float16)
        copied = torch.empty_like(source)

        def run() -> dict[str, Tensor]:
            copied.copy_(source)
            return {"copy": copied}

        return Prepared(run, backend="library", bytes_floor=4 * count, expected={"copy": source})


class CopyAttention(_Copy):
    """Of attention's q, k, v and outputs."""

    op = "attention"


class CopyBlockSparseAttention(_Copy):
    """Of block-sparse attention's q, k, v and outputs."""

    op = "block_sparse_attention"


class CopySpMM(_Copy):
    """Of spmm's dense matrices."""

    op = "spmm"
