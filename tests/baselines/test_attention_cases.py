"""Faults that users of attention kernels reported, tried on every attention contender that runs on a CPU."""

from __future__ import annotations

import pytest
import torch

from harness.contender import discover
from harness.ops import OPS
from harness.verify import Gate
from tests.baselines.gating import CPU, judge, through_the_gate

OP = OPS["attention"]
ATTENTION = {name: c for name, c in discover()["attention"].items() if c.role != "control" or name == "naive"}
BASELINES = sorted(name for name, c in ATTENTION.items() if c.role != "ours" and c.unavailable(CPU) is None)

each_baseline = pytest.mark.parametrize("name", BASELINES)
each_direction = pytest.mark.parametrize("direction", ["forward", "backward"])


def case(direction="forward", **fields):
    return OP.Params(**{"direction": direction, "batch": 2, "num_heads": 2, "head_dim": 32, **fields})


def run(name, params, inputs):
    return ATTENTION[name].prepare(params, inputs, CPU).run()


def test_some_baselines_run_here():
    assert {"unfused_fp16", "sdpa_flash", "sdpa_math", "naive"} <= set(BASELINES)


@each_baseline
@each_direction
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(2, 5), (5, 2), (63, 64)])
def test_causal_with_different_lengths_is_aligned_bottom_right(name, direction, seqlen_q, seqlen_k):
    params = case(direction, seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)
    _, verdict = through_the_gate(ATTENTION[name], params, CPU)
    assert verdict.passed, verdict.reason
    outputs = run(name, params, OP.inputs(params, "cpu"))
    for row in range(max(0, seqlen_q - seqlen_k)):  # sees no key
        assert not outputs["out" if direction == "forward" else "dq"][:, :, row].any()


@each_baseline
def test_one_token(name):
    params = case("backward", batch=1, num_heads=1, seqlen=1, head_dim=16)
    inputs = {key: 3 * value for key, value in OP.inputs(params, "cpu").items()}
    gradients = run(name, params, inputs)
    assert not gradients["dq"].any()
    assert not gradients["dk"].any()
    assert torch.equal(gradients["dv"], inputs["dout"])


@each_baseline
@each_direction
@pytest.mark.parametrize("seqlen", [2, 31, 33, 63, 113, 127])
def test_lengths_off_the_tile(name, direction, seqlen):
    _, verdict = through_the_gate(ATTENTION[name], case(direction, seqlen=seqlen, num_heads=3), CPU)
    assert verdict.passed, verdict.reason


@each_baseline
@each_direction
@pytest.mark.parametrize("head_dim", [40, 59, 72, 111])
def test_head_dims_off_the_tile(name, direction, head_dim):
    _, verdict = through_the_gate(ATTENTION[name], case(direction, seqlen=33, head_dim=head_dim), CPU)
    assert verdict.passed, verdict.reason


@each_baseline
@each_direction
@pytest.mark.parametrize("num_heads_kv", [2, 1])
def test_grouped_heads(name, direction, num_heads_kv):
    params = case(direction, seqlen=40, num_heads=4, num_heads_kv=num_heads_kv, causal=True)
    _, verdict = through_the_gate(ATTENTION[name], params, CPU)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("value", [35.0, 256.0])
def test_overflow_of_qk_is_incorrect_for_unfused_and_right_for_fused(value):
    params = case(seqlen=8, head_dim=128)
    inputs = dict(OP.inputs(params, "cpu"))
    inputs["q"], inputs["k"] = torch.full_like(inputs["q"], value), torch.full_like(inputs["k"], value)
    gate = Gate(OP, params, inputs)
    assert not gate.check(run("unfused_fp16", params, inputs)).passed
    verdict = gate.check(run("sdpa_flash", params, inputs))
    assert verdict.passed, verdict.reason


@each_baseline
def test_sequences_of_a_batch_do_not_interfere(name):
    params = case("backward", seqlen=40)
    inputs = {key: value.clone() for key, value in OP.inputs(params, "cpu").items()}
    alone = {key: value.clone() for key, value in run(name, params, inputs).items()}
    for tensor in inputs.values():
        tensor[1] = 0
    beside_zeros = run(name, params, inputs)
    for key, value in beside_zeros.items():
        assert torch.equal(value[0], alone[key][0])
        assert not value[1].any()


@each_baseline
@each_direction
def test_strided_inputs_give_what_contiguous_ones_give(name, direction):
    params = case(direction, seqlen=33, causal=True)
    inputs = OP.inputs(params, "cpu")
    strided = {key: value.transpose(1, 2).contiguous().transpose(1, 2) for key, value in inputs.items()}
    qkv = torch.stack([inputs[key] for key in ("q", "k", "v")], 2)
    strided.update(zip(("q", "k", "v"), qkv.unbind(2), strict=True))
    assert not strided["q"].is_contiguous()
    prepared = ATTENTION[name].prepare(params, strided, CPU)
    verdict = judge(ATTENTION[name], params, prepared, prepared.run(), "cpu")
    assert verdict.passed, verdict.reason


@each_baseline
def test_a_backward_is_timed_without_its_forward(name, monkeypatch):
    params = case("backward", seqlen=33)
    prepared = ATTENTION[name].prepare(params, OP.inputs(params, "cpu"), CPU)
    forbidden = lambda *args, **kwargs: pytest.fail("the forward ran again")  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", forbidden)
    monkeypatch.setattr(torch, "matmul", forbidden)
    monkeypatch.setattr(torch.Tensor, "__matmul__", forbidden)
    first = {key: value.clone() for key, value in prepared.run().items()}
    for key, value in prepared.run().items():
        assert torch.equal(value, first[key])
