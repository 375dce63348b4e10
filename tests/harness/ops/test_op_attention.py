"""The attention op against formulas written out in NumPy, its counts against counting, its numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from harness.ops import OPS, dense

OP = OPS["attention"]


def by_hand(q, k, v, dout, causal):
    """Out, dq, dk, dv of one head by the textbook formulas, in float64."""
    scale = q.shape[-1] ** -0.5
    scores = q @ k.T * scale
    if causal:
        i, j = np.indices(scores.shape)
        scores[j > i + len(k) - len(q)] = -np.inf
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = weights.sum(-1, keepdims=True)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    dp = dout @ v.T
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return p @ v, ds @ k, ds.T @ q, p.T @ dout


def params(direction="forward", **fields):
    return OP.Params(**{"direction": direction, "batch": 2, "num_heads": 4, "head_dim": 24, **fields})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (7, 7), (2, 5), (5, 2), (33, 65)])
@pytest.mark.parametrize("num_heads_kv", [4, 2, 1])
def test_reference_is_the_textbook_formula(causal, seqlen_q, seqlen_k, num_heads_kv):
    shape = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "num_heads_kv": num_heads_kv, "causal": causal}
    backward = params("backward", **shape, seed=seqlen_q + seqlen_k)
    inputs = OP.inputs(backward, "cpu")
    gradients = OP.reference(backward, inputs)
    forward_inputs = {name: inputs[name] for name in ("q", "k", "v")}
    out = OP.reference(params(**shape), forward_inputs)["out"]

    group = 4 // num_heads_kv
    q, k, v, dout = (inputs[name].double().numpy() for name in ("q", "k", "v", "dout"))
    expected = {name: np.zeros(t.shape) for name, t in {**gradients, "out": out}.items()}
    for b in range(2):
        for h in range(4):
            kv = (b, h // group)
            expected["out"][b, h], expected["dq"][b, h], dk, dv = by_hand(q[b, h], k[kv], v[kv], dout[b, h], causal)
            expected["dk"][kv] += dk
            expected["dv"][kv] += dv
    for name, value in {**gradients, "out": out}.items():
        assert value.dtype == torch.float64
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_chunks_of_rows_and_heads_change_nothing(direction, monkeypatch):
    case = params(direction, seqlen=50, causal=True)
    inputs = OP.inputs(case, "cpu")
    whole, whole_half = OP.reference(case, inputs), OP.plain(case, inputs, torch.float16)
    monkeypatch.setattr(dense, "SCORE_BYTES", 13 * 50 * 8)  # 13 rows of float64, one head of float16
    for name, value in OP.reference(case, inputs).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-13, atol=1e-14)
    for name, value in OP.plain(case, inputs, torch.float16).items():
        assert torch.equal(value, whole_half[name])


def test_plain_computes_in_the_dtype_asked_for():
    case = params(seqlen=33)
    inputs = OP.inputs(case, "cpu")
    reference = OP.reference(case, inputs)["out"]
    errors = {
        dtype: (OP.plain(case, inputs, dtype)["out"].double() - reference).abs().max().item()
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
    }
    assert OP.plain(case, inputs, torch.float16)["out"].dtype == torch.float16
    assert 0 < errors[torch.float32] < 1e-5 < errors[torch.float16] < errors[torch.bfloat16] < 0.1


def test_plain_half_overflows_as_unfused_half_does():
    case = params(seqlen=8, head_dim=128)
    inputs = {name: torch.full_like(t, 35.0) for name, t in OP.inputs(case, "cpu").items()}  # 35 * 35 * 128 > 65504
    assert not OP.plain(case, inputs, torch.float16)["out"].isfinite().all()
    assert torch.equal(OP.reference(case, inputs)["out"], torch.full((2, 4, 8, 128), 35.0, dtype=torch.float64))


def test_one_token_has_no_gradient_in_q_and_k():
    case = OP.Params(direction="backward", batch=1, num_heads=1, seqlen=1, head_dim=16)
    inputs = {name: 3 * t for name, t in OP.inputs(case, "cpu").items()}
    gradients = OP.reference(case, inputs)
    assert not gradients["dq"].any()
    assert not gradients["dk"].any()
    assert torch.equal(gradients["dv"], inputs["dout"].double())


def test_inputs_depend_on_the_params_only():
    case = params("backward", seqlen=9)
    torch.manual_seed(1)
    first = OP.inputs(case, "cpu")
    torch.manual_seed(2)
    second = OP.inputs(case, "cpu")
    other = OP.inputs(params("backward", seqlen=9, seed=1), "cpu")
    assert set(first) == {"q", "k", "v", "dout"}
    for name, tensor in first.items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, second[name])
        assert not torch.equal(tensor, other[name])


def test_inputs_are_standard_normal():
    q = OP.inputs(params(seqlen=512, head_dim=64), "cpu")["q"].double()
    assert abs(q.mean().item()) < 0.01
    assert abs(q.std().item() - 1) < 0.01


def test_flops_of_the_papers_sweep():
    fields = {"tokens": 16384, "hidden": 2048, "seqlen": 4096, "head_dim": 64}
    full = OP.Params(**fields)
    assert (full.batch, full.num_heads) == (4, 32)
    assert OP.flops(full) == 4 * 4 * 32 * 4096**2 * 64
    assert OP.flops(OP.Params(**fields, causal=True)) == pytest.approx(OP.flops(full) / 2, rel=1 / 4096)
    assert OP.flops(OP.Params(**fields, direction="backward")) == 2.5 * OP.flops(full)


def test_bytes_floor_is_inputs_and_outputs_once():
    for direction in ("forward", "backward"):
        case = params(direction, seqlen_q=5, seqlen_k=9, num_heads_kv=2)
        inputs = OP.inputs(case, "cpu")
        outputs = OP.plain(case, inputs, torch.float16)
        assert OP.bytes_floor(case) == sum(t.nbytes for t in (*inputs.values(), *outputs.values()))


def test_columns_are_columns_of_the_record():
    from harness.records import Record

    attention = {"batch": 1, "num_heads": 2, "seqlen": 40, "head_dim": 8}
    shapes = {
        "attention": attention,
        "block_sparse_attention": {**attention, "block": 32, "density": 0.5},
        "spmm": {"m": 8, "n": 2, "k": 8, "sparsity": 0.5},
        "training_step": {"model": "tiny_encoder", "batch": 2, "seqlen": 40},
        "sparse_training_step": {"tokens": 64, "seqlen": 64, "block": 32, "density": 0.5},
        "decode_step": {"model": "tiny_opt", "batch": 2, "prompt": 3, "new_tokens": 2, "sparsity": 0.5},
    }
    for name, op in OPS.items():
        case = op.Params(**shapes[name])
        columns = op.columns(case)
        record = Record(**columns)
        assert all(getattr(record, key) == value for key, value in columns.items())
        assert op.peak_bytes_estimate(case) > op.bytes_floor(case) > 0


@pytest.mark.parametrize(
    "fields", [{"num_heads": 3, "num_heads_kv": 2}, {"head_dim": 0}, {"seqlen_q": -1}, {"dtype": "int8"}]
)
def test_bad_params_are_refused(fields):
    with pytest.raises(ValidationError):
        params(**{"seqlen_q": 4, "seqlen_k": 4, **fields})
