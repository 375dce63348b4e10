from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.ops import OPS
from harness.ops.base import Op
from harness.verify import Gate, check_exact, max_error, poison_allocator, poisoned_call, ulp_of_max


class Known:
    """An op with given reference and plain outputs."""

    plain_and_reference = Op.plain_and_reference

    def __init__(self, reference: torch.Tensor, plain: torch.Tensor, in_float32: torch.Tensor | None = None):
        self._reference, self._plain, self._in_float32 = reference, plain, in_float32

    def reference(self, params: Any, inputs: Any) -> dict[str, torch.Tensor]:
        return {"y": self._reference}

    def plain(self, params: Any, inputs: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {"y": self._in_float32 if dtype == torch.float32 else self._plain}

    def gate_factors(self, params: Any) -> dict[str, float]:
        return {"y": 2.0}

    def gate_group(self, output: str) -> str:
        return output


class Layers(Known):
    """Outputs a.0 and a.1, which share an allowance, and b."""

    def __init__(self) -> None:
        self._errors = {"a.0": 0.25, "a.1": 2.0**-6, "b": 2.0**-6}

    def reference(self, params: Any, inputs: Any) -> dict[str, torch.Tensor]:
        return {name: torch.ones(1, dtype=torch.float64) for name in self._errors}

    def plain(self, params: Any, inputs: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([1 + error], dtype=torch.float16) for name, error in self._errors.items()}

    def gate_factors(self, params: Any) -> dict[str, float]:
        return dict.fromkeys(self._errors, 3.0)

    def gate_group(self, output: str) -> str:
        return output[0]


def known_gate(reference: list[float], plain: list[float], in_float32: list[float] | None = None) -> Gate:
    half = torch.tensor(plain, dtype=torch.float16)
    single = None if in_float32 is None else torch.tensor(in_float32)
    op = Known(torch.tensor(reference, dtype=torch.float64), half, single)
    return Gate(op, SimpleNamespace(dtype="float16"), {})


def outputs(*values: float) -> dict[str, torch.Tensor]:
    return {"y": torch.tensor(values, dtype=torch.float16)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    for exponent in (-30, -3, 0, 1, 7):
        value = torch.tensor(1.37 * 2.0**exponent, dtype=dtype)
        neighbour = torch.nextafter(value, torch.tensor(math.inf, dtype=dtype))
        assert ulp_of_max(value.double(), dtype) == float(neighbour.double() - value.double())


@pytest.mark.parametrize(("wrong", "passes"), [("a.0", True), ("a.1", True), ("b", False)])
def test_a_group_is_held_to_its_largest_allowance(wrong: str, passes: bool) -> None:
    gate = Gate(Layers(), SimpleNamespace(dtype="float16"), {})
    outputs = {name: torch.ones(1, dtype=torch.float16) for name in ("a.0", "a.1", "b")}
    outputs[wrong] += 0.7
    assert gate.check(outputs).passed == passes
    outputs["a.1"] += 0.8 - 0.7 * (wrong == "a.1")
    assert not gate.check(outputs).passed


def test_allowance_is_a_multiple_of_the_plain_error() -> None:
    gate = known_gate([1.0, 100.0], [1.5, 100.0])
    good = gate.check(outputs(1.0, 101.0))
    assert good.passed
    assert (good.error, good.ratio, good.factor) == (1.0, 2.0, 2.0)
    bad = gate.check(outputs(1.0, 101.0625))
    assert not bad.passed
    assert "y is off by 1.06, allowed 1" in bad.reason


def test_one_ulp_of_the_largest_reference_is_always_allowed_and_no_more() -> None:
    gate = known_gate([0.25, 1000.0], [0.25, 1000.0])
    assert gate.check(outputs(0.25, 1000.5)).passed
    assert gate.check(outputs(0.75, 1000.0)).ratio == 1.0
    assert not gate.check(outputs(0.25, 1001.0)).passed


def test_float32_stands_in_where_plain_is_not_finite() -> None:
    gate = known_gate([1.0, 2.0], [math.nan, 2.0], [1.25, 2.0])
    assert gate.expectations["y"].plain_error == 0.25
    assert gate.check(outputs(1.5, 2.0)).passed
    assert not gate.check(outputs(1.75, 2.0)).passed


def test_infinity_is_right_only_beyond_the_range_and_with_the_sign() -> None:
    gate = known_gate([7e4, -7e4, 1.0], [math.inf, -math.inf, 1.0])
    assert gate.check(outputs(math.inf, -math.inf, 1.0)).passed
    assert "is infinite" in gate.check(outputs(math.inf, math.inf, 1.0)).reason
    assert "is infinite" in gate.check(outputs(math.inf, -math.inf, math.inf)).reason
    assert not gate.check(outputs(65504.0, -math.inf, 1.0)).passed
    assert "NaN" in gate.check(outputs(math.nan, -math.inf, 1.0)).reason


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({}, "is missing"),
        ({"y": torch.zeros(3, dtype=torch.float16)}, r"has shape \[3\], not \[2\]"),
        ({"y": torch.ones(2)}, "is float32, not float16"),
    ],
)
def test_missing_misshapen_and_mistyped_outputs_fail(bad: dict[str, torch.Tensor], words: str) -> None:
    verdict = known_gate([1.0, 1.0], [1.0, 1.0]).check(bad)
    assert not verdict.passed
    assert re.search(words, verdict.reason)


def test_a_reference_that_is_nan_is_an_error_of_the_op() -> None:
    with pytest.raises(ValueError, match="reference of y has NaN"):
        known_gate([math.nan], [1.0])


@pytest.fixture
def attention_gate() -> tuple[Gate, dict[str, torch.Tensor]]:
    op = OPS["attention"]
    fields = {"batch": 1, "num_heads": 2, "seqlen": 33, "head_dim": 40, "direction": "backward", "causal": True}
    params = op.Params.model_validate({**fields, "seed": torch.seed() % 2**31})
    inputs = op.inputs(params, "cpu")
    return Gate(op, params, inputs), op.plain(params, inputs, torch.float16)


def test_plain_passes_with_ratio_one_at_most(attention_gate: tuple[Gate, dict[str, torch.Tensor]]) -> None:
    gate, plain = attention_gate
    verdict = gate.check(plain)
    assert verdict.passed
    assert verdict.ratio <= 1
    assert verdict.factor == 3


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_two_shuffled_rows_fail(attention_gate: tuple[Gate, dict[str, torch.Tensor]], name: str) -> None:
    gate, plain = attention_gate
    shuffled = plain[name].clone()
    shuffled[0, 1, [7, 20]] = shuffled[0, 1, [20, 7]]
    assert not gate.check({**plain, name: shuffled}).passed


def test_one_unwritten_row_fails_though_the_right_value_is_there_from_before() -> None:
    buffer = torch.ones(4, 8, dtype=torch.float16)

    def forgets_a_row() -> dict[str, torch.Tensor]:
        buffer[:3] = 1
        return {"y": buffer}

    op = Known(torch.ones(4, 8, dtype=torch.float64), torch.ones(4, 8, dtype=torch.float16))
    gate = Gate(op, SimpleNamespace(dtype="float16"), {})
    assert gate.check(forgets_a_row()).passed, "stale values look right"
    verdict = gate.check(poisoned_call(forgets_a_row))
    assert "8 NaN of 32" in verdict.reason


def test_fresh_outputs_start_poisoned() -> None:
    shape = (64, 257)
    poison_allocator([shape], torch.float16, "cpu")
    fresh = [torch.empty(shape, dtype=torch.float16) for _ in range(3)]
    bookkeeping = 16  # elements that malloc overwrites at the start of a freed block
    assert any(t.isnan().sum() >= t.numel() - bookkeeping for t in fresh)


def test_outputs_of_a_first_call_are_poisoned_before_the_second() -> None:
    made: list[torch.Tensor] = []

    def run() -> dict[str, torch.Tensor]:
        made.append(torch.ones(64, 257, dtype=torch.float16))
        return {"y": made[-1]}

    assert (poisoned_call(run)["y"] == 1).all()
    assert len(made) == 2
    assert made[0].isnan().all()


def test_poisoning_takes_outputs_of_inference_mode_and_autograd() -> None:
    leaf = torch.ones(3, requires_grad=True)

    def run() -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            made = torch.ones(3)
        return {"made": made, "grown": leaf * 2}

    seen = poisoned_call(run)
    assert seen["made"].tolist() == [1, 1, 1]
    assert seen["grown"].tolist() == [2, 2, 2]


def test_exact_outputs_are_compared_bit_for_bit() -> None:
    right = {"y": torch.randn(5).half()}
    assert check_exact({"y": right["y"].clone()}, right).passed
    wrong = right["y"].clone()
    wrong[2] = torch.nextafter(wrong[2], wrong[2] + 1)
    assert check_exact({"y": wrong}, right).reason == "y differs in 1 of 5 elements"


def test_max_error_of_nothing_is_zero() -> None:
    assert max_error(torch.empty(0).half(), torch.empty(0).double()) == 0.0


@pytest.mark.gpu
def test_fresh_outputs_start_poisoned_on_a_gpu() -> None:
    shape = (1024, 1024)
    torch.cuda.empty_cache()
    stale = torch.ones(shape, dtype=torch.float16, device="cuda")
    del stale
    poison_allocator([shape], torch.float16, "cuda")
    assert torch.empty(shape, dtype=torch.float16, device="cuda").isnan().all()
