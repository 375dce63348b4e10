"""The sm_90a forward against float64 through the gate, on the emulator and on a Hopper GPU."""

from __future__ import annotations

import math

import pytest
import torch

from harness.ops import OPS
from harness.verify import Gate
from impl.cuda import emulator
from impl.spark_attention.kernels.forward import empty_outputs
from impl.spark_attention.kernels.forward_sm90 import forward_call, takes
from tests.impl.spark_attention.backends import emulated

OP = OPS["attention"]
GPU = pytest.param(
    "kernel",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
        ),
    ],
)
everywhere = pytest.mark.parametrize("backend", [pytest.param("emulated", marks=emulated), GPU])
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
each_head_dim = pytest.mark.parametrize("head_dim", [64, 128])


def case(**fields):
    return OP.Params(**{"batch": 1, "num_heads": 2, "head_dim": 64, **fields})


def forward(backend, q, k, v, causal):
    out, lse = (t.fill_(math.nan) for t in empty_outputs(q))
    assert takes(q, k, v, out)
    if backend == "emulated":
        launch = emulator.launch
    else:
        from impl.cuda.launch import launch
    launch(*forward_call(q, k, v, out, lse, causal=causal, softmax_scale=q.shape[-1] ** -0.5))
    return out, lse


def check(params, backend, change=lambda inputs: inputs):
    inputs = change({**OP.inputs(params, "cpu" if backend == "emulated" else "cuda")})
    out, lse = forward(backend, inputs["q"], inputs["k"], inputs["v"], params.causal)
    verdict = Gate(OP, params, inputs).check({"out": out})
    assert verdict.passed, verdict.reason
    torch.testing.assert_close(lse.double(), float64_lse(params, inputs), rtol=1e-6, atol=1e-5)
    return out, lse


def float64_lse(params, inputs):
    q, k = inputs["q"].double(), inputs["k"].double().repeat_interleave(params.num_heads // params.num_heads_kv, 1)
    scores = q @ k.mT * params.head_dim**-0.5
    if params.causal:
        rows = torch.arange(params.seqlen_q, device=q.device)[:, None] + params.seqlen_k - params.seqlen_q
        scores.masked_fill_(torch.arange(params.seqlen_k, device=q.device) > rows, -math.inf)
    return scores.logsumexp(-1)


@everywhere
@causal_or_not
@each_head_dim
@pytest.mark.parametrize("seqlen", [1, 129, 300])
def test_lengths_off_the_tile(backend, seqlen, head_dim, causal):
    check(case(seqlen=seqlen, head_dim=head_dim, causal=causal, num_heads=1), backend)


@everywhere
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (260, 67), (67, 520)])
def test_causal_is_aligned_bottom_right(backend, lengths):
    seqlen_q, seqlen_k = lengths
    out, lse = check(case(seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True), backend)
    empty = max(0, seqlen_q - seqlen_k)
    assert not out[:, :, :empty].any()
    assert lse[:, :, :empty].eq(-math.inf).all()


@everywhere
@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_head_dims_off_the_tile(backend, head_dim):
    check(case(seqlen=70, head_dim=head_dim, causal=True), backend)


@everywhere
@pytest.mark.parametrize("heads", [(4, 2), (4, 1)])
def test_grouped_heads(backend, heads):
    check(case(num_heads=heads[0], num_heads_kv=heads[1], seqlen=40, batch=2), backend)


@everywhere
@each_head_dim
def test_bfloat16(backend, head_dim):
    check(case(seqlen=150, head_dim=head_dim, causal=True, dtype="bfloat16"), backend)


@everywhere
@each_head_dim
def test_heads_inside_rows(backend, head_dim):
    def interleave(inputs):
        return inputs | {name: inputs[name].transpose(1, 2).contiguous().transpose(1, 2) for name in "qkv"}

    check(case(seqlen=140, head_dim=head_dim, batch=2), backend, interleave)


@everywhere
@pytest.mark.parametrize(("value", "head_dim"), [(35.0, 128), (256.0, 64)])
def test_scores_past_the_fp16_range(backend, value, head_dim):
    def constant(inputs):
        return inputs | {name: torch.full_like(inputs[name], value) for name in "qk"}

    check(case(seqlen=300, head_dim=head_dim, num_heads=1), backend, constant)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [GPU])
@causal_or_not
@each_head_dim
@pytest.mark.parametrize("seqlen", [441, 1023, 1025, 4250])
def test_long_lengths_off_the_tile(backend, seqlen, head_dim, causal):
    check(case(batch=2, num_heads=8, seqlen=seqlen, head_dim=head_dim, causal=causal), backend)


def _call(head_dim, **fields):
    params = case(**{"head_dim": head_dim, "num_heads": 1, "causal": True} | fields)
    inputs = OP.inputs(params, "cpu")
    out, lse = (t.fill_(math.nan) for t in empty_outputs(inputs["q"]))
    call = forward_call(inputs["q"], inputs["k"], inputs["v"], out, lse, causal=True, softmax_scale=head_dim**-0.5)
    return call, (out, lse)


@emulated
@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    call, outputs = _call(head_dim, seqlen=390)
    emulator.launch(*call, check_races=True)
    first = [t.clone() for t in outputs]
    emulator.launch(*call, seed=1)
    assert all(map(torch.equal, first, outputs))


@emulated
@each_head_dim
@pytest.mark.parametrize("seqlen_q", [390, 700], ids=["keys for all", "tiles without keys"])
def test_a_block_that_does_several_tiles_gives_the_same_bits(head_dim, seqlen_q):
    (kernel, grid, arguments), outputs = _call(head_dim, seqlen_q=seqlen_q, seqlen_k=390, num_heads=2)
    emulator.launch(kernel, grid, arguments)
    first = [t.clone() for t in outputs]
    for output in outputs:
        output.fill_(math.nan)
    emulator.launch(kernel, (2, 1, 1), arguments, check_races=True)
    assert all(map(torch.equal, first, outputs))


@emulated
@each_head_dim
def test_output_meets_no_bank_conflicts(head_dim):
    call, _ = _call(head_dim, seqlen=128)
    shared = [c for c in emulator.count(*call) if c.instruction in ("ld.shared", "st.shared") and c.bytes < 128]
    assert {c.instruction for c in shared} == {"ld.shared", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []


def test_takes_only_what_the_copy_engine_can_load():
    good = torch.zeros(2, 2, 8, 64, dtype=torch.half)
    assert takes(good, good, good, good)
    bad = {
        "rows off 16 bytes": torch.zeros(2, 2, 8, 68, dtype=torch.half)[..., :64],
        "base off 16 bytes": torch.zeros(2, 2, 8, 72, dtype=torch.half)[..., 1:65],
        "last stride not one": torch.zeros(2, 2, 64, 8, dtype=torch.half).mT,
        "one head for all, by stride 0": torch.zeros(2, 1, 8, 64, dtype=torch.half).expand(2, 2, 8, 64),
        "no keys": torch.zeros(2, 2, 0, 64, dtype=torch.half),
    }
    assert [reason for reason, tensor in bad.items() if takes(good, tensor, good, good)] == []
    odd = torch.zeros(2, 2, 8, 60, dtype=torch.half)
    assert not takes(odd, odd, odd, odd)
