"""Dense matrix product: what a sparse kernel has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams, float32_reductions

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class Cublas(Contender):
    """torch.matmul into a preallocated output, split-K sums in float32, zeros multiplied like any number."""

    name = "cublas"
    op = "spmm"
    role = "baseline"
    label = "cuBLAS (dense)"
    summary = "torch.matmul on the dense matrix; cuBLAS picks the algorithm"
    source = "torch.matmul"
    sources = ("harness/ops/spmm.py",)

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        w, x = inputs["w"], inputs["x"]
        y = torch.empty(params.m, params.n, dtype=x.dtype, device=x.device)

        def run() -> dict[str, Tensor]:
            with float32_reductions():
                torch.matmul(w, x, out=y)
            return {"y": y}

        note = None if target.is_cuda else "torch.matmul on the CPU, no cuBLAS"
        return Prepared(run, backend="library", tuning={"algorithm": "heuristic"}, note=note)
