"""2:4 structured sparsity on the sparse Tensor Cores, as PyTorch calls cuSPARSELt or CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class SemiStructured(Contender):
    """Holds half of the values and two bits of place for each."""

    name = "semi_structured"
    op = "spmm"
    role = "baseline"
    label = "2:4 (cuSPARSELt)"
    summary = "torch.sparse.to_sparse_semi_structured; only for weights with two zeros in every four"
    source = "torch.sparse.SparseSemiStructuredTensor"

    def unavailable(self, target: Target) -> str | None:
        return None if target.is_cuda else "sparse Tensor Cores are on NVIDIA GPUs (sm_80 or newer) only; run on one"

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.pattern != "2:4":
            return f"a {params.pattern} pattern has groups of four with more than two non-zeros; use pattern 2:4"
        if target.capability < (8, 0):
            return f"{target.name} has no sparse Tensor Cores (compute capability 8.0 or newer); use cublas"
        if params.dtype == "float32":
            return "takes float16 and bfloat16 here; choose one of them"
        if params.m % 32 or params.k % 64:
            return f"m={params.m}, k={params.k} must be multiples of 32 and 64; pad the weights"
        return None

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        x = inputs["x"]
        w = torch.sparse.to_sparse_semi_structured(inputs["w"])

        def run() -> dict[str, Tensor]:
            return {"y": torch.mm(w, x)}

        bits_per_kept = 8 * x.element_size() + 2
        format_bytes = params.m * params.k // 2 * bits_per_kept // 8
        return Prepared(
            run,
            backend="library",
            tuning={"library": type(w).__name__},
            format_bytes=format_bytes,
            bytes_floor=format_bytes + (params.k + params.m) * params.n * x.element_size(),
        )
