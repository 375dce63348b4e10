"""Block-sparse rows by PyTorch's own Triton kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from baselines.spmm._tuning import fastest
from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

_BLOCKS = (16, 32, 64)
_COLUMNS = 16  # of x at least; Triton cuts them into powers of two, which have to come out even


class TritonBsr(Contender):
    """Every block size that divides W is timed. Blocks without non-zeros are skipped, all others stored whole."""

    name = "triton_bsr"
    op = "spmm"
    role = "baseline"
    label = "Triton BSR"
    summary = "PyTorch's Triton kernel for block-sparse rows; a random pattern leaves it no block to skip"
    source = "torch.sparse._triton_ops.bsr_dense_mm"
    sources = ("baselines/spmm/_tuning.py",)

    def unavailable(self, target: Target) -> str | None:
        if not target.is_cuda:
            return "Triton compiles for GPUs only; run on one"
        if target.capability < (8, 0):
            return f"PyTorch's BSR kernels need compute capability 8.0 or newer, {target.name} has less; use cublas"
        return None if importlib.util.find_spec("triton") else "needs the package triton; install it"

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if params.m % _BLOCKS[0] or params.k % _BLOCKS[0]:
            return f"m={params.m}, k={params.k} must be multiples of {_BLOCKS[0]}, the smallest block; pad the weights"
        if params.sparsity == 1:
            return "a matrix without non-zeros has no blocks to multiply; use cublas"
        return None

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        w, x = inputs["w"], inputs["x"]
        blocks = [block for block in _BLOCKS if params.m % block == 0 and params.k % block == 0]
        matrices = {f"block {block}": w.to_sparse_bsr((block, block)) for block in blocks}
        runs = {name: _product(matrix, x) for name, matrix in matrices.items()}
        best, tried = fastest(runs)
        matrix = matrices[best]
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        format_bytes = sum(part.nbytes for part in parts)
        return Prepared(
            runs[best],
            backend="library",
            tuning={"block": best, "tried": tried},
            graphable=False,  # the library looks at the pattern in every call
            format_bytes=format_bytes,
            bytes_floor=format_bytes + x.nbytes + params.m * params.n * x.element_size(),
        )


def _product(matrix: Tensor, x: Tensor) -> Callable[[], Tensors]:
    """A call; x gets columns of zeros up to a power of two, as part of it."""
    from torch.sparse._triton_ops import bsr_dense_mm

    n = x.shape[1]
    padding = max(_COLUMNS, 1 << (n - 1).bit_length()) - n

    def run() -> Tensors:
        y = bsr_dense_mm(matrix, torch.nn.functional.pad(x, (0, padding)) if padding else x)
        return {"y": y[:, :n].contiguous()}

    return run
