"""SpMM: Y[m, n] = W[m, k] X[k, n], W unstructured sparse, X a skinny matrix of activations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from harness.case import CaseParams
from harness.lazy import lazy_import
from harness.ops.base import ITEMSIZE, Op, Tensors
from harness.ops.patterns import Pattern, set_zeros_, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

torch = lazy_import("torch")

_CHUNK_ELEMENTS = 2**27  # of W in float64: 1 GiB


class SpMMParams(CaseParams):
    """A case: W has this share of zeros, and they lie where the pattern says (harness/ops/patterns.py)."""

    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    sparsity: float = Field(ge=0, le=1)
    pattern: Pattern = "random"

    @model_validator(mode="after")
    def _has_the_pattern(self) -> SpMMParams:
        if reason := why_not(self.pattern, self.k, self.sparsity, self.dtype):
            raise ValueError(reason)
        return self

    def slug(self) -> str:
        pattern = self.pattern.replace(":", "to")
        return f"m{self.m}.k{self.k}.n{self.n}.s{self.sparsity:g}.{pattern}.{self.dtype}.seed{self.seed}"


@contextmanager
def float32_reductions() -> Iterator[None]:
    """Within it cuBLAS sums partial products (split-K) in float32, as every contender of this op must."""
    matmul = torch.backends.cuda.matmul
    flags = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(matmul, flag) for flag in flags]
    for flag in flags:
        setattr(matmul, flag, False)
    try:
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            setattr(matmul, flag, value)


class SpMM(Op):
    """Inputs w [m, k], dense with zeros, and x [k, n]; output y [m, n]. Values are standard normal."""

    name = "spmm"
    Params = SpMMParams

    def inputs(self, params: SpMMParams, device: str) -> Tensors:
        options = {"generator": torch.Generator(device).manual_seed(params.seed), "device": device}
        dtype = getattr(torch, params.dtype)
        w = torch.randn(params.m, params.k, dtype=dtype, **options)
        set_zeros_(w, params.pattern, params.sparsity, options["generator"])
        return {"w": w, "x": torch.randn(params.k, params.n, dtype=dtype, **options)}

    def counted(self, params: SpMMParams, inputs: Tensors) -> dict[str, Any]:
        from impl.flash_llm.pruning import tile_statistics

        tiles = tile_statistics(inputs["w"])
        return {"tile_density_max": tiles.densest, "tile_density_variance": tiles.variance}

    def reference(self, params: SpMMParams, inputs: Tensors) -> dict[str, Tensor]:
        x = inputs["x"].double()
        rows = max(1, _CHUNK_ELEMENTS // params.k)
        return {"y": torch.cat([part.double() @ x for part in inputs["w"].split(rows)])}

    def plain(self, params: SpMMParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        with float32_reductions():
            return {"y": inputs["w"].to(dtype) @ inputs["x"].to(dtype)}

    def gate_factors(self, params: SpMMParams) -> dict[str, float]:
        return {"y": 2.0}

    def flops(self, params: SpMMParams) -> float:
        return 2.0 * params.m * params.n * params.k

    def bytes_floor(self, params: SpMMParams) -> int:
        """Of a dense W."""
        elements = params.m * params.k + params.k * params.n + params.m * params.n
        return elements * ITEMSIZE[params.dtype]

    def peak_bytes_estimate(self, params: SpMMParams) -> int:
        """Making W takes its values and a float32 or int64 draw; a format at most doubles them (CSR, 10 bytes each)."""
        return self.bytes_floor(params) + 12 * params.m * params.k + 16 * min(_CHUNK_ELEMENTS, params.m * params.k)

    def columns(self, params: SpMMParams) -> dict[str, Any]:
        return {key: getattr(params, key) for key in ("dtype", "seed", "m", "n", "k", "sparsity", "pattern")}
