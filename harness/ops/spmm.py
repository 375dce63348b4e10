"""SpMM: Y[m, n] = W[m, k] X[k, n], W unstructured sparse, X a skinny matrix of activations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.case import CaseParams


class SpMMParams(CaseParams):
    """A case: W keeps each element with probability 1 - sparsity (`random`), or two of four (`2:4`)."""

    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    sparsity: float = Field(ge=0, le=1)
    pattern: Literal["random", "2:4"] = "random"

    def slug(self) -> str:
        return f"m{self.m}.k{self.k}.n{self.n}.s{self.sparsity:g}.{self.pattern.replace(':', 'to')}.{self.dtype}.seed{self.seed}"
