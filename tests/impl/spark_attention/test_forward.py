"""The forward against float64 through the gate: every fault that users of attention kernels reported."""

from __future__ import annotations

import math

import pytest
import torch

from harness.ops import OPS
from harness.verify import Gate
from tests.impl.spark_attention.backends import (
    CPU,
    EMULATED,
    EMULATED_SM70,
    EMULATED_SM80,
    EMULATED_SM90,
    GPU,
    LAYOUTS,
    device_of,
    each_layout,
    forward,
    gpu,
    sequences_far_apart,
)
from tests.impl.spark_attention.distortions import DISTORTIONS

OP = OPS["attention"]
everywhere = pytest.mark.parametrize("backend", [*CPU, *EMULATED, *GPU])
at_full_size = pytest.mark.parametrize("backend", [*CPU, *GPU])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def case(**fields):
    return OP.Params(**{"batch": 1, "num_heads": 2, "head_dim": 64, **fields})


def inputs_of(params, backend):
    return OP.inputs(params, device_of(backend))


def check(params, inputs, backend, accumulate="fp32"):
    """Hold `backend` to the gate on these inputs; returns out and lse."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    out, lse = forward(backend, q, k, v, causal=params.causal, accumulate=accumulate)
    verdict = Gate(OP, params, inputs).check({"out": out})
    assert verdict.passed, verdict.reason
    return out, lse


def float64_lse(params, inputs):
    q, k = inputs["q"].double(), inputs["k"].double().repeat_interleave(params.num_heads // params.num_heads_kv, 1)
    scores = q @ k.mT * params.head_dim**-0.5
    if params.causal:
        rows = torch.arange(params.seqlen_q, device=q.device)[:, None] + params.seqlen_k - params.seqlen_q
        scores.masked_fill_(torch.arange(params.seqlen_k, device=q.device) > rows, -math.inf)
    return scores.logsumexp(-1)


@everywhere
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (130, 67), (67, 130)])
def test_causal_is_aligned_bottom_right(backend, lengths):
    seqlen_q, seqlen_k = lengths
    params = case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)
    inputs = inputs_of(params, backend)
    out, lse = check(params, inputs, backend)
    torch.testing.assert_close(lse.double(), float64_lse(params, inputs), rtol=0, atol=1e-5)
    empty = max(0, seqlen_q - seqlen_k)
    assert not out[:, :, :empty].any()
    assert lse[:, :, :empty].eq(-math.inf).all()


@pytest.mark.parametrize("backend", [EMULATED_SM90])
@causal_or_not
def test_the_larger_tiles_of_long_sequences(backend, causal):
    params = case(seqlen_q=200, seqlen_k=2100, head_dim=128, causal=causal, num_heads=1)
    check(params, inputs_of(params, backend), backend)


@at_full_size
@pytest.mark.parametrize("lengths", [(600, 300), (1023, 1024), (2048, 1024)])
def test_causal_with_long_lengths(backend, lengths):
    params = case(seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)
    check(params, inputs_of(params, backend), backend)


@everywhere
@causal_or_not
@pytest.mark.parametrize("seqlen", [1, 2, 31, 33, 63, 65, 113, 127, 129])
def test_lengths_off_the_tile(backend, seqlen, causal):
    params = case(seqlen=seqlen, num_heads=3, causal=causal, seed=seqlen)
    inputs = inputs_of(params, backend)
    _, lse = check(params, inputs, backend)
    torch.testing.assert_close(lse.double(), float64_lse(params, inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", EMULATED)
@pytest.mark.parametrize("lengths", [(1023, 1024), (2048, 1024), (33, 2925), (31, 4250), (1025, 33)])
def test_many_tiles_and_what_is_left_over(backend, lengths):
    params = case(seqlen_q=lengths[0], seqlen_k=lengths[1], causal=True)
    check(params, inputs_of(params, backend), backend)


@pytest.mark.parametrize("backend", GPU)
@causal_or_not
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seqlen", [441, 1023, 1025, 2925, 4250])
def test_long_lengths_off_the_tile(backend, seqlen, head_dim, causal):
    params = case(batch=2, seqlen=seqlen, head_dim=head_dim, causal=causal)
    check(params, inputs_of(params, backend), backend)


@everywhere
@pytest.mark.parametrize("head_dim", [40, 59, 72, 80, 88, 96, 100, 111, 128])
def test_head_dims_off_the_tile(backend, head_dim):
    params = case(seqlen=70, head_dim=head_dim, causal=True)
    check(params, inputs_of(params, backend), backend)


@at_full_size
@pytest.mark.parametrize("head_dim", [1, 8, 127])
def test_more_head_dims(backend, head_dim):
    params = case(seqlen=150, head_dim=head_dim)
    check(params, inputs_of(params, backend), backend)


@everywhere
@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (6, 1), (6, 3)])
def test_grouped_heads(backend, heads):
    params = case(num_heads=heads[0], num_heads_kv=heads[1], seqlen=40, batch=2)
    check(params, inputs_of(params, backend), backend)


@pytest.mark.parametrize("backend", [*CPU, EMULATED_SM80, pytest.param("native", marks=gpu)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_bfloat16(backend, head_dim):
    params = case(seqlen=100, head_dim=head_dim, causal=True, dtype="bfloat16")
    check(params, inputs_of(params, backend), backend)


@everywhere
@pytest.mark.parametrize(("value", "head_dim"), [(35.0, 128), (256.0, 64)])
def test_scores_past_the_fp16_range(backend, value, head_dim):
    params = case(seqlen=65, head_dim=head_dim)
    inputs = {**inputs_of(params, backend)}
    inputs["q"], inputs["k"] = torch.full_like(inputs["q"], value), torch.full_like(inputs["k"], value)
    check(params, inputs, backend)


@everywhere
def test_an_unchanged_maximum_scales_older_keys_by_one(backend):
    params = case(num_heads=1, seqlen_q=16, seqlen_k=700, head_dim=128)
    inputs = {**inputs_of(params, backend)}
    inputs["q"], inputs["k"] = torch.full_like(inputs["q"], 35.0), torch.full_like(inputs["k"], 35.0)
    check(params, inputs, backend)


@everywhere
@pytest.mark.parametrize("growth", [11.0, 40.0, -40.0])
def test_maxima_that_grow_from_tile_to_tile(backend, growth):
    """Scores rise along the keys by `growth` in all: kernels that follow the maximum at a distance take every way."""
    params = case(num_heads=2, seqlen_q=40, seqlen_k=290)
    inputs = {**inputs_of(params, backend)}
    inputs["q"] = torch.ones_like(inputs["q"])
    rise = torch.linspace(0, growth, params.seqlen_k, device=inputs["k"].device) * params.head_dim**-0.5
    inputs["k"] = (inputs["k"] / 4 + rise[:, None]).to(inputs["k"].dtype)
    check(params, inputs, backend)


@everywhere
@pytest.mark.parametrize("distance", [12.0, 16.0])
def test_many_keys_far_below_one(backend, distance):
    """One key `distance` above 700 others, whose values alone are not 0: small probabilities are not lost."""
    params = case(num_heads=1, seqlen_q=20, seqlen_k=701)
    inputs = {**inputs_of(params, backend)}
    inputs["q"], inputs["k"] = torch.ones_like(inputs["q"]), torch.zeros_like(inputs["k"])
    inputs["k"][:, :, 0] = distance * params.head_dim**-0.5
    inputs["v"] = inputs["v"] * 0.1 + 1
    inputs["v"][:, :, 0] = 0
    out, lse = check(params, inputs, backend)
    right = 700 / (math.exp(float(inputs["k"][0, 0, 0, 0].double()) * params.head_dim**0.5) + 700)
    assert float(out.double().mean()) == pytest.approx(right, rel=0.1)
    torch.testing.assert_close(lse.double(), float64_lse(params, inputs), rtol=0, atol=1e-4)


@everywhere
@pytest.mark.parametrize("distort", [*DISTORTIONS, lambda x: x * 1000])
def test_inputs_far_from_normal(backend, distort):
    params = case(seqlen=130, causal=True)
    inputs = {name: distort(tensor) for name, tensor in inputs_of(params, backend).items()}
    check(params, inputs, backend)


@everywhere
def test_sequences_do_not_interfere(backend):
    params = case(batch=2, seqlen=70)
    inputs = inputs_of(params, backend)
    for tensor in inputs.values():
        tensor[1] = 0
    out, lse = check(params, inputs, backend)
    assert not out[1].any()
    torch.testing.assert_close(lse[1], torch.full_like(lse[1], math.log(70)), rtol=0, atol=1e-5)


@everywhere
@each_layout
def test_strided_inputs_equal_contiguous_ones(backend, layout):
    strided = LAYOUTS[layout](3, device=device_of(backend))
    contiguous = [t.contiguous() for t in strided]
    for got, want in zip(forward(backend, *strided), forward(backend, *contiguous), strict=True):
        if layout == "odd_rows" or backend == "reference":  # another kernel variant, another matrix product
            torch.testing.assert_close(got, want, rtol=0, atol=2e-3)
        else:
            assert torch.equal(got, want)


@everywhere
def test_same_result_every_time(backend):
    inputs = inputs_of(case(seqlen=200), backend)
    first, second = (forward(backend, inputs["q"], inputs["k"], inputs["v"]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@everywhere
def test_offsets_past_32_bits(backend):
    inputs = sequences_far_apart(3, device_of(backend))
    check(case(batch=2, seqlen=70), dict(zip("qkv", inputs, strict=True)), backend)


fp16_accumulating = pytest.mark.parametrize("backend", [*CPU, EMULATED_SM70, pytest.param("sm_70", marks=gpu)])


@fp16_accumulating
@causal_or_not
@pytest.mark.parametrize("head_dim", [64, 128])
def test_fp16_accumulation(backend, head_dim, causal):
    params = case(seqlen=200, head_dim=head_dim, causal=causal)
    inputs = inputs_of(params, backend)
    out, _ = check(params, inputs, backend, accumulate="fp16")
    assert not torch.equal(out, forward(backend, inputs["q"], inputs["k"], inputs["v"], causal=causal)[0])


@fp16_accumulating
def test_fp16_accumulation_scales_q_before_the_product(backend):
    """q = k = 35 at head dim 128 is 156,800, past the fp16 range; a sum of 16 products of q / 16 is not."""
    q, v = (torch.randn(1, 4, 40, 128, device=device_of(backend)).half() for _ in range(2))
    q.fill_(35)
    out, lse = forward(backend, q, q, v, accumulate="fp16")
    assert lse.isfinite().all()
    torch.testing.assert_close(out.double(), v.double().mean(2, keepdim=True).expand_as(v), rtol=0, atol=5e-3)


@fp16_accumulating
def test_fp16_accumulation_does_not_hide_an_overflow(backend):
    """q = k = 256: even the scaled sum of 16 products is 65,536; what is wrong must be seen to be."""
    q, v = (torch.randn(1, 1, 40, 128, device=device_of(backend)).half() for _ in range(2))
    q.fill_(256)
    assert not forward(backend, q, q, v, accumulate="fp16")[0].isfinite().any()


def test_the_gate_sees_two_rows_exchanged():
    params = case(seqlen=64)
    inputs = inputs_of(params, "reference")
    out, _ = forward("reference", inputs["q"], inputs["k"], inputs["v"])
    out[:, :, [10, 11]] = out[:, :, [11, 10]]
    assert not Gate(OP, params, inputs).check({"out": out}).passed
