"""The numerical gate: no contender is timed whose error is not of plain PyTorch's own size.

Per output tensor, with errors as largest absolute differences from the float64 reference:

    error <= max(factor * plain error, one ulp of max|reference|)

where the plain error is that of the same computation by unfused PyTorch in the case's dtype, and the factor is 2
for outputs and 3 for gradients. Where plain PyTorch is not finite, float32 arithmetic rounded to the dtype takes
its place; where the reference itself leaves the dtype's range, infinity of its sign is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.base import Op, Tensors

torch = lazy_import("torch")


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one contender's outputs.

    `error` is the largest over the outputs. `ratio` is error / allowance at factor 1, and `factor` the factor,
    both of the output that comes nearest to (or furthest past) its limit. None where an output is missing or not
    finite, and where the outputs were to match bit for bit. `reason` is None when they passed.
    """

    reason: str | None = None
    error: float | None = None
    ratio: float | None = None
    factor: float | None = None

    @property
    def passed(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class Expectation:
    """What one output is held to."""

    reference: Tensor  # float64
    dtype: Any  # what plain PyTorch gives: the case's, or float32 where it accumulates into float32 weights
    plain_error: float
    ulp: float
    factor: float

    @property
    def allowance(self) -> float:
        """Error allowed at factor 1."""
        return max(self.plain_error, self.ulp)

    @property
    def limit(self) -> float:
        return max(self.factor * self.plain_error, self.ulp)


class Gate:
    """The expectations of one case, computed once and held against every contender."""

    def __init__(self, op: Op, params: Any, inputs: Tensors):
        """Raises ValueError when the op's reference is NaN: then nothing can be verified."""
        self.dtype = getattr(torch, params.dtype)
        plain, references = op.plain_and_reference(params, inputs, self.dtype)
        in_float32 = None
        self.expectations: dict[str, Expectation] = {}
        for name, factor in op.gate_factors(params).items():
            reference = references[name]
            if reference.isnan().any():
                raise ValueError(f"the float64 reference of {name} has NaN")
            plain_error, dtype = max_error(plain[name], reference), plain[name].dtype
            if not math.isfinite(plain_error):
                in_float32 = in_float32 or op.plain(params, inputs, torch.float32)
                plain_error = max_error(in_float32[name].to(self.dtype), reference)
            if not math.isfinite(plain_error):
                plain_error = 0.0
            ulp = ulp_of_max(reference, self.dtype)
            self.expectations[name] = Expectation(reference, dtype, plain_error, ulp, factor)
        self.expectations = _pooled(op, self.expectations)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(e.reference.shape) for name, e in self.expectations.items()}

    def check(self, outputs: Mapping[str, Tensor]) -> Verdict:
        """Hold `outputs` (by name, in plain PyTorch's dtype and the references' shapes) against the gate."""
        errors: dict[str, float] = {}
        for name, expected in self.expectations.items():
            if reason := _misfit(outputs.get(name), expected.reference.shape, expected.dtype):
                return Verdict(f"{name} {reason}")
            errors[name] = max_error(outputs[name], expected.reference)
            if not math.isfinite(errors[name]):
                return Verdict(f"{name} {_what_is_not_finite(outputs[name], expected.reference)}")
        worst = max(errors, key=lambda name: errors[name] / self.expectations[name].limit)
        expected, error = self.expectations[worst], errors[worst]
        reason = None
        if error > expected.limit:
            reason = (
                f"{worst} is off by {error:.3g}, allowed {expected.limit:.3g}: the larger of {expected.factor:g} x "
                f"{expected.plain_error:.3g} (plain {_name(self.dtype)}) and one ulp, {expected.ulp:.3g}"
            )
        return Verdict(reason, max(errors.values()), error / expected.allowance, expected.factor)


def _pooled(op: Op, expectations: Mapping[str, Expectation]) -> dict[str, Expectation]:
    """The expectations, with the largest plain error and ulp of their group."""
    groups: dict[str, list[Expectation]] = {}
    for name, expected in expectations.items():
        groups.setdefault(op.gate_group(name), []).append(expected)
    largest = {
        group: {key: max(getattr(expected, key) for expected in members) for key in ("plain_error", "ulp")}
        for group, members in groups.items()
    }
    return {name: replace(expected, **largest[op.gate_group(name)]) for name, expected in expectations.items()}


def check_exact(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Verdict:
    """Hold outputs to `expected`, bit for bit: for contenders that compute nothing (a copy)."""
    for name, right in expected.items():
        if reason := _misfit(outputs.get(name), right.shape, right.dtype):
            return Verdict(f"{name} {reason}")
        wrong = int((outputs[name] != right).sum())
        if wrong:
            return Verdict(f"{name} differs in {wrong} of {right.numel()} elements")
    return Verdict(error=0.0)


def max_error(output: Tensor, reference: Tensor) -> float:
    """Largest |output - reference|; infinite when the output is not finite where the reference is in range."""
    if not output.numel():
        return 0.0
    difference = (output.double() - reference).abs()
    right_infinity = output.isinf() & (output.double() == reference.to(output.dtype).double())
    difference = difference.masked_fill(right_infinity, 0.0)
    return float(difference.nan_to_num(nan=math.inf, posinf=math.inf).max())


def ulp_of_max(reference: Tensor, dtype: Any) -> float:
    """Distance between neighbours of `dtype` at the largest |reference| that is in its range."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    magnitudes = reference.abs()
    in_range = magnitudes[magnitudes <= info.max]
    largest = float(in_range.max()) if in_range.numel() else 0.0
    if largest < info.smallest_normal:
        return smallest
    return info.eps * 2.0 ** (math.frexp(largest)[1] - 1)


def poison_allocator(shapes: Iterable[tuple[int, ...]], dtype: Any, device: str) -> None:
    """Leave freed blocks of these sizes full of NaN, so that uninitialised outputs start out as NaN.

    On a GPU every cached block that could serve such a request is taken and filled, until the allocator has to ask
    the device for more; a CPU's allocator shows nothing, so a few of each size are. Then all are freed.
    """
    held: list[Tensor] = []
    for elements in {math.prod(shape) for shape in shapes}:  # a model's gradients are many, their sizes few
        for _ in range(64 if device == "cuda" else 4):
            before = torch.cuda.memory_reserved() if device == "cuda" else 0
            held.append(torch.full((elements,), math.nan, dtype=dtype, device=device))
            if device == "cuda" and torch.cuda.memory_reserved() > before:
                break


def poison(outputs: Mapping[str, Tensor]) -> None:
    """Overwrite outputs with NaN in place: where they lie in static buffers, stale right values cannot pass."""
    with torch.inference_mode():  # also takes tensors that were made in that mode
        for tensor in outputs.values():
            tensor.fill_(math.nan)


def poisoned_call(run: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Outputs of a call whose output memory was NaN before: those of a first call are poisoned and given back."""
    poison(run())
    return run()


def _misfit(output: Tensor | None, shape: Any, dtype: Any) -> str | None:
    if output is None:
        return "is missing from the outputs"
    if output.shape != shape:
        return f"has shape {list(output.shape)}, not {list(shape)}"
    if output.dtype != dtype:
        return f"is {_name(output.dtype)}, not {_name(dtype)}"
    return None


def _what_is_not_finite(output: Tensor, reference: Tensor) -> str:
    nans = int(output.isnan().sum())
    if nans:
        return f"has {nans} NaN of {output.numel()} elements (outputs start as NaN: not written, or computed as such)"
    wrong = int((output.isinf() & (output.double() != reference.to(output.dtype).double())).sum())
    return f"is infinite in {wrong} of {output.numel()} elements where the reference is not"


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
