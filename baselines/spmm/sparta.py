"""SparTA's SpMM by its published design: a 2:4 part on the sparse Tensor Cores, and the rest in CSR."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baselines.spmm import sputnik
from baselines.spmm._sputnik import SputnikMatrix
from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class Sparta(Contender):
    """Of each four neighbours in a row the two largest are 2:4; what is left is added by the Sputnik-style kernel.

    The two products meet in float16, as in the original, whose 2:4 part is a library's.
    """

    name = "sparta"
    op = "spmm"
    role = "baseline"
    label = "SparTA-style"
    summary = "2:4 by cuSPARSELt plus the remaining non-zeros in CSR, added on the CUDA cores"
    source = "Zheng et al., SparTA, OSDI 2022; written from the paper"
    sources = ("baselines/spmm/sputnik.py", *sputnik.Sputnik.sources)

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if target.is_cuda and target.capability < (8, 0):
            return f"{target.name} has no sparse Tensor Cores (compute capability 8.0 or newer); use sputnik"
        if params.m % 32 or params.k % 64:
            return f"m={params.m}, k={params.k} must be multiples of 32 and 64 for 2:4; pad the weights"
        return sputnik.unsupported(params, target)

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda.backend import kernel_fields

        w, x = inputs["w"], inputs["x"]
        structured = two_of_four(w)
        rest = SputnikMatrix.from_dense(w - structured)
        y = torch.empty(params.m, params.n, dtype=x.dtype, device=x.device)
        multiply = _structured_product(structured, x, y, target)
        y.zero_()  # shapes are tried on it
        shape, tuning = sputnik.choose(params, lambda shape: sputnik.runner(rest, x, y, shape, target, True), target)
        add_rest = sputnik.runner(rest, x, y, shape, target, True)

        def run() -> Tensors:
            multiply()
            return add_rest()

        structured_bytes = w.numel() // 2 * (8 * w.element_size() + 2) // 8
        format_bytes = structured_bytes + rest.nbytes
        prepared = Prepared(
            run,
            tuning={**tuning, "rest": round((len(rest.values) - 4) / w.numel(), 4)},
            format_bytes=format_bytes,
            bytes_floor=format_bytes + x.nbytes + y.nbytes,
            **kernel_fields([shape.kernel(accumulate=True)], x.device),
        )
        if prepared.backend == "reference":
            prepared.run = lambda: {"y": (w.float() @ x.float()).to(x.dtype)}
        return prepared


def two_of_four(w: Tensor) -> Tensor:
    """w [m, k] with the two largest of each four neighbours in a row, zeros elsewhere."""
    groups = w.unflatten(1, (-1, 4))
    kept = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, groups.abs().topk(2, dim=2).indices, True)
    return torch.where(kept, groups, 0).flatten(1)


def _structured_product(structured: Tensor, x: Tensor, y: Tensor, target: Target) -> Callable[[], None]:
    """Writes its product with x to y: by the library on a GPU, as a dense one on a CPU."""
    if not target.is_cuda:
        return lambda: y.copy_(structured.float() @ x.float())
    compressed = torch.sparse.to_sparse_semi_structured(structured)
    return lambda: y.copy_(torch.mm(compressed, x))
