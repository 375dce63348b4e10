"""The contract of an op: inputs, references, the error gate's factors, and what is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from harness.case import CaseParams

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes, by CaseParams.dtype


class Op(ABC):
    """What is computed. One instance per op, found in `harness.ops.OPS`.

    Inputs and outputs are tensors by name, so that nothing travels by position. Modules import torch
    through `lazy_import`: planning and validation must not pay for it.
    """

    name: ClassVar[str]
    Params: ClassVar[type[CaseParams]]

    @abstractmethod
    def inputs(self, params: Any, device: str) -> Tensors:
        """Random inputs of the case on `device`, a function of the params (seed included) only."""

    @abstractmethod
    def reference(self, params: Any, inputs: Tensors) -> dict[str, Tensor]:
        """The outputs in float64, computed in chunks that fit beside the inputs."""

    @abstractmethod
    def plain(self, params: Any, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        """The same computation by unfused PyTorch in `dtype`: the yardstick of the error gate."""

    def plain_and_reference(self, params: Any, inputs: Tensors, dtype: Any) -> tuple[dict, dict]:
        """`plain` in `dtype` and `reference`, for an op that has work to share between them."""
        return self.plain(params, inputs, dtype), self.reference(params, inputs)

    @abstractmethod
    def gate_factors(self, params: Any) -> dict[str, float]:
        """By output name, how many times the plain error is allowed: 2 for outputs, 3 for gradients."""

    def gate_group(self, output: str) -> str:
        """Outputs of one group are held to the largest allowance among them. By itself, each output is a group."""
        return output

    @abstractmethod
    def flops(self, params: Any) -> float:
        """Useful floating-point operations of one call (dense-equivalent for spmm)."""

    def reference_flops(self, params: Any) -> float:
        """Of the reference, and about of making a contender, where that is much more than a call's: for the plan."""
        return 0.0

    @abstractmethod
    def bytes_floor(self, params: Any) -> int:
        """Fewest bytes of device memory one call must move: each input read once, each output written once."""

    @abstractmethod
    def peak_bytes_estimate(self, params: Any) -> int:
        """Upper estimate of the memory that inputs, references and the hungriest contender need."""

    @abstractmethod
    def columns(self, params: Any) -> dict[str, Any]:
        """The record columns that describe the case: direction, batch, seqlen_q, m, n, k, sparsity, ..."""

    def counted(self, params: Any, inputs: Tensors) -> dict[str, Any]:
        """Record columns that only the inputs themselves tell: statistics of a random pattern."""
        return {}
