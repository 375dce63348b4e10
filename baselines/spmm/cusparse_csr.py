"""Sparse times dense in CSR, as PyTorch calls cuSPARSE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class CusparseCsr(Contender):
    """PyTorch fixes algorithm 2 and calls no preprocessing: `tuning` says so."""

    name = "cusparse_csr"
    op = "spmm"
    role = "baseline"
    label = "cuSPARSE CSR"
    summary = "torch.sparse CSR (cuSPARSE SpMM, algorithm 2 without preprocessing)"
    source = "torch.sparse, https://docs.nvidia.com/cuda/cusparse/"

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if not target.is_cuda and not torch.backends.mkl.is_available():
            return "PyTorch's CPU product of CSR needs MKL, which this build lacks; run on an x86 CPU or a GPU"
        return None

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        x = inputs["x"]
        compute_dtype = x.dtype if target.is_cuda else torch.float32
        wide = inputs["w"].to_sparse_csr()
        parts = (wide.crow_indices().int(), wide.col_indices().int(), wide.values().to(compute_dtype))
        w = torch.sparse_csr_tensor(*parts, wide.shape, check_invariants=False)
        y = torch.empty(params.m, params.n, dtype=compute_dtype, device=x.device)

        def run() -> dict[str, Tensor]:
            torch.mm(w, x.to(compute_dtype), out=y)
            return {"y": y.to(x.dtype)}

        format_bytes = sum(part.nbytes for part in parts)
        return Prepared(
            run,
            backend="library",
            tuning={"algorithm": "CSR ALG2, no preprocessing"} if target.is_cuda else {},
            format_bytes=format_bytes,
            bytes_floor=format_bytes + x.nbytes + params.m * params.n * x.element_size(),
            note=None if target.is_cuda else "PyTorch's CPU product of CSR (MKL), in float32; no cuSPARSE",
        )
