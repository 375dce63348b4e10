"""The sparse training step against masked dense attention in float64, its counts, and what its gate finds."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from harness.contender import Target, discover
from harness.ops import OPS
from harness.ops.sparse_training_step import batch_of, encoder, pattern_of
from harness.verify import Gate
from tests.impl.sparse_training.blocks import masked_dense

OP = OPS["sparse_training_step"]
CPU = Target("cpu", "a CPU")


def params(batch=2, seqlen=70, block=32, density=0.5, layers=2, **fields):
    return OP.Params(batch=batch, seqlen=seqlen, block=block, density=density, layers=layers, **fields)


class Masked(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, lengths):
        return masked_dense(q, k, v, **self.options)


@pytest.mark.parametrize("method", ["sat", "sat_csr", "window", "dense", "dense_flash"])
def test_reference_is_the_method_in_float64(method):
    case = params(method=method)
    inputs = OP.inputs(case, "cpu")
    sparse = not method.startswith("dense")
    kept = pattern_of(case, inputs)[None] if sparse else torch.ones(1, 3, 3, dtype=torch.bool)
    assert 0 < kept.sum() < 9 or not sparse
    softmax = "pruned_as_zero" if method.startswith("sat") else "renormalised"
    attentions = [Masked(pattern=kept, block=case.block, softmax=softmax) for _ in range(case.layers)]
    model = encoder(case, inputs, attentions, torch.float64)
    losses = model(*batch_of(inputs))
    losses.mean().backward()
    expected = {"losses": losses.detach(), **{f"d {name}": p.grad for name, p in model.named_parameters()}}
    found = OP.reference(case, inputs)
    assert found.keys() == expected.keys() == OP.gate_factors(case).keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("method", ["linformer", "performer", "nystromformer"])
def test_a_method_without_blocks_is_its_own_reference(method):
    """In float64, with the same weights and features in every call; the yardstick differs from it by rounding only."""
    case = params(method=method)
    inputs = OP.inputs(case, "cpu")
    exact, again, plain = OP.reference(case, inputs), OP.reference(case, inputs), OP.plain(case, inputs, torch.float16)
    own = {"linformer": "project", "performer": None, "nystromformer": "skip"}[method]
    assert own is None or f"d layers.1.attention.{own}" in {name.removesuffix(".weight") for name in exact}
    for name, tensor in exact.items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, again[name])
        error = float((plain[name] - tensor).abs().max() / tensor.abs().max())
        assert 0 < error < 0.05, name


def test_every_call_is_the_same_and_nothing_is_left_behind():
    case = params()
    inputs = OP.inputs(case, "cpu")
    before = {name: t.clone() for name, t in inputs.items()}
    run = discover()[OP.name]["sat"].prepare(case, inputs, CPU).run
    first = {name: t.clone() for name, t in run().items()}
    assert all(torch.equal(tensor, first[name]) for name, tensor in run().items())
    assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())


def test_the_gate_finds_another_pattern_softmax_and_method():
    case = params()
    inputs = OP.inputs(case, "cpu")
    gate = Gate(OP, case, inputs)
    steps = discover()[OP.name]

    def passes(name, pattern=inputs["pattern"]):
        return gate.check(steps[name].prepare(case, {**inputs, "pattern": pattern}, CPU).run()).passed

    assert passes("sat")
    assert passes("sat_csr")
    assert not passes("sat", inputs["pattern"].mT.roll(1, 1).contiguous())
    assert not passes("sat", ~inputs["pattern"])
    assert not any(map(passes, ("dense", "window", "linformer")))


def test_the_dense_phase_watches_and_trains_its_pattern_apart(monkeypatch):
    """The step's own outputs are the dense ones; the maps are each step's."""
    from impl.sparse_training import pattern

    seen = []
    forward = pattern.TransitionMonitor.forward
    monkeypatch.setattr(pattern.TransitionMonitor, "forward", lambda own, maps: seen.append(maps) or forward(own, maps))
    case = params()
    inputs = OP.inputs(case, "cpu")
    for name in ("sat_dense_phase", "dense_monitor"):
        seen.clear()
        contender = discover()[OP.name][name]
        prepared = contender.prepare(case, inputs, CPU)
        outputs = prepared.run()
        assert len(seen) == 2
        assert seen[1].shape == (case.layers, case.seqlen, case.seqlen)
        assert seen[1].sum().item() == pytest.approx(case.layers * case.seqlen, rel=1e-3)
        assert Gate(OP, *contender.reference_case(case, inputs)).check(outputs).passed


def test_cases_are_checked_and_named_by_what_is_computed():
    assert OP.Params(tokens=140, seqlen=70, density=0.5).batch == 2
    with pytest.raises(ValidationError, match="must be a positive multiple"):
        OP.Params(tokens=141, seqlen=70, density=0.5)
    with pytest.raises(ValidationError, match="block"):
        params(block=16)
    assert params().slug() == params(method="dense").slug()
    assert params().slug() != params(density=0.25).slug()


def test_flops_are_those_of_the_kept_pairs_and_of_the_rest():
    class Values(nn.Module):
        def forward(self, q, k, v, lengths):
            return v + 0 * (q + k)

    case = params(seqlen=128, density=1.0, batch=4)
    inputs = OP.inputs(case, "cpu")
    model = encoder(case, inputs, [Values()] * case.layers, torch.float32)
    with FlopCounterMode(display=False) as counter:
        model(*batch_of(inputs)).mean().backward()
    heads, pairs, dim = 2, 128 * 128, 32
    attention = case.layers * case.batch * heads * pairs * dim * 14
    assert OP.flops(case) - attention == pytest.approx(counter.get_total_flops(), rel=0.01)
    half = params(seqlen=128, density=0.5, batch=4)
    assert OP.flops(case) - OP.flops(half) == pytest.approx(attention / 2)
    columns = OP.columns(case)
    assert columns["parameters"] == sum(p.numel() for p in model.parameters())
    assert (columns["density"], columns["tokens"], columns["seqlen_q"], columns["layers"]) == (1.0, 512, 128, 2)
