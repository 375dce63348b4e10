"""Sparse times dense in CSR by cuSPARSE, with the algorithm and the output type that suit the case best."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from baselines.spmm._cusparse import ALGORITHMS, NOT_SUPPORTED, CsrProduct, CusparseError, library, to_csr
from baselines.spmm._tuning import milliseconds
from harness.contender import Contender, Prepared, Target, Unsupported
from harness.lazy import lazy_import
from harness.ops.base import Tensors
from harness.ops.spmm import SpMM, SpMMParams
from harness.verify import Gate, max_error

if TYPE_CHECKING:
    from torch import Tensor

    from baselines.spmm._cusparse import Csr

torch = lazy_import("torch")

_ACCURATE = 0.75  # of the gate's limit: one rounding to 16 bits takes half, and ALG1 and ALG2 vary from call to call


class CusparseCsr(Contender):
    """Every algorithm is preprocessed, tried with outputs of the case's dtype and of float32, and timed."""

    name = "cusparse_csr"
    op = "spmm"
    role = "baseline"
    label = "cuSPARSE CSR"
    summary = "cuSPARSE SpMM in CSR: the fastest accurate of three algorithms, preprocessed"
    source = "https://docs.nvidia.com/cuda/cusparse/#cusparsespmm"
    sources = ("baselines/spmm/_cusparse.py", "baselines/spmm/_tuning.py")

    def unsupported(self, params: SpMMParams, target: Target) -> str | None:
        if not target.is_cuda and not torch.backends.mkl.is_available():
            return "PyTorch's CPU product of CSR needs MKL, which this build lacks; run on an x86 CPU or a GPU"
        return None

    def prepare(self, params: SpMMParams, inputs: Tensors, target: Target) -> Prepared:
        w, x = inputs["w"], inputs["x"]
        csr = to_csr(w if target.is_cuda else w.float())
        run, tuning = _fastest_accurate(params, inputs, csr) if target.is_cuda else (_with_mkl(params, x, csr), {})
        format_bytes = sum(part.nbytes for part in csr)
        return Prepared(
            run,
            backend="library",
            tuning=tuning,
            format_bytes=format_bytes,
            bytes_floor=format_bytes + x.nbytes + params.m * params.n * x.element_size(),
            note=None if target.is_cuda else "PyTorch's CPU product of CSR (MKL), in float32; no cuSPARSE",
        )


def _with_mkl(params: SpMMParams, x: Tensor, csr: Csr) -> Callable[[], Tensors]:
    w = torch.sparse_csr_tensor(*csr, (params.m, params.k), check_invariants=False)
    y = torch.empty(params.m, params.n)

    def run() -> Tensors:
        torch.mm(w, x.float(), out=y)
        return {"y": y.to(x.dtype)}

    return run


def _fastest_accurate(params: SpMMParams, inputs: Tensors, csr: Csr) -> tuple[Callable[[], Tensors], dict[str, Any]]:
    """The fastest call within _ACCURATE of the gate's limit, or the fastest of all, which the gate then judges.

    An output of 16 bits moves fewer bytes than one of float32, but is rounded wherever partial sums meet in it.
    Raises Unsupported without the library, and where it takes no algorithm with these types.
    """
    try:
        library()
    except OSError as error:
        raise Unsupported(f"no cuSPARSE to call ({error}); install a PyTorch built for CUDA 12 or 13") from error
    x, expected = inputs["x"], Gate(SpMM(), params, inputs).expectations["y"]
    tried, best = {}, None
    for algorithm, dtype in itertools.product(ALGORITHMS, dict.fromkeys((x.dtype, torch.float32))):
        choice = {"algorithm": algorithm, "output": str(dtype).removeprefix("torch."), "preprocess": True}
        trial = f"{algorithm} {choice['output']}"
        y = torch.full((params.m, params.n), torch.nan, dtype=dtype, device=x.device)
        try:
            run = _rounded(CsrProduct(csr, x, y, algorithm), x.dtype)
            accurate = max_error(run()["y"], expected.reference) <= _ACCURATE * expected.limit
        except CusparseError as refusal:
            if refusal.status != NOT_SUPPORTED:
                raise
            tried[trial] = refusal.name
            continue
        tried[trial] = {"ms": round(milliseconds(run), 4), "accurate": accurate}
        rank = (not accurate, tried[trial]["ms"])
        if best is None or rank < best[0]:
            best = (rank, run, choice)
    if best is None:
        raise Unsupported(f"cuSPARSE takes {params.dtype} in none of {', '.join(ALGORITHMS)}; use cublas")
    return best[1], {**best[2], "tried": tried}


def _rounded(product: CsrProduct, dtype: Any) -> Callable[[], Tensors]:
    """The product as a contender's call, its output rounded to `dtype`."""
    rounded = product.y if product.y.dtype == dtype else torch.empty_like(product.y, dtype=dtype)

    def run() -> Tensors:
        product()
        if rounded is not product.y:
            rounded.copy_(product.y)
        return {"y": rounded}

    return run
