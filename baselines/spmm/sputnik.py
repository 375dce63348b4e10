"""Sputnik's SpMM by its published design: CSR, one-dimensional tiles, no Tensor Cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baselines.spmm import _sputnik
from baselines.spmm._tuning import fastest
from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMMParams
from impl.cuda import GPU_SOURCES

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


class Sputnik(Contender):
    """Every width of vector that divides n is timed on a GPU; on a CPU the kernel is emulated."""

    name = "sputnik"
    op = "spmm"
    role = "baseline"
    label = "Sputnik-style"
    summary = "CSR by one-dimensional tiles, row swizzle and aligned vector loads, on the CUDA cores"
    source = "Gale et al., Sparse GPU Kernels for Deep Learning, SC 2020; written from the paper"
    sources = ("baselines/spmm/_sputnik.py", "baselines/spmm/_tuning.py", "baselines/spmm/kernels", *GPU_SOURCES)

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        return unsupported(params, target)

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda.backend import kernel_fields

        w, x = inputs["w"], inputs["x"]
        matrix = _sputnik.SputnikMatrix.from_dense(w)
        y = torch.empty(params.m, params.n, dtype=x.dtype, device=x.device)
        shape, tuning = choose(params, lambda shape: runner(matrix, x, y, shape, target), target)
        prepared = Prepared(
            run=runner(matrix, x, y, shape, target),
            tuning=tuning,
            format_bytes=matrix.nbytes,
            bytes_floor=matrix.nbytes + x.nbytes + y.nbytes,
            **kernel_fields([shape.kernel(accumulate=False)], x.device),
        )
        if prepared.backend == "reference":
            prepared.run = lambda: {"y": (w.float() @ x.float()).to(x.dtype)}
        return prepared


def unsupported(params: SpMMParams, target: Target) -> str | None:
    """What the 16-bit design cannot take."""
    if params.dtype != "float16":
        return f"the kernel takes float16, not {params.dtype}"
    if params.k > _sputnik.MAX_K:
        return f"16-bit signed column ids address {_sputnik.MAX_K} columns, not {params.k}; use cusparse_csr"
    if target.is_cuda and target.capability < (7, 0):
        return f"needs compute capability 7.0 or newer, {target.name} has less; use cusparse_csr"
    return None


def runner(
    matrix: _sputnik.SputnikMatrix,
    x: Tensor,
    y: Tensor,
    shape: _sputnik.Shape,
    target: Target,
    accumulate: bool = False,
) -> Callable[[], Tensors]:
    """A call of the kernel, on a GPU or emulated."""
    if target.is_cuda:
        from impl.cuda.launch import launch
    else:
        from impl.cuda.emulator import launch

    def run() -> Tensors:
        _sputnik.multiply(matrix, x, y, shape, launch, accumulate)
        return {"y": y}

    return run


def choose(
    params: SpMMParams, run_by: Callable[[_sputnik.Shape], Callable[[], Tensors]], target: Target
) -> tuple[_sputnik.Shape, dict[str, object]]:
    """The fastest shape on a GPU, the one with the widest vectors on a CPU, and what to record of the choice."""
    options = {f"vector {shape.vector}": shape for shape in _sputnik.shapes(params.n)}
    tried: dict[str, float] = {}
    best = next(iter(options))
    if target.is_cuda:
        best, tried = fastest({name: run_by(shape) for name, shape in options.items()})
    return options[best], {"tile_n": options[best].tile_n, "vector": options[best].vector, "tried": tried}
