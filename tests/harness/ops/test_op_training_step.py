"""The training step against formulas in NumPy and differences of them, its counts against counting, and what its gate
finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from harness.contender import Target, discover
from harness.ops import OPS, transformer
from harness.ops.calls import training_call
from harness.ops.training_step import MODELS, Shape, split
from harness.ops.transformer import Training, Transformer, with_weights
from harness.verify import Gate

OP = OPS["training_step"]
MODELS_HERE = ["tiny_encoder", "tiny_decoder"]

each_model = pytest.mark.parametrize("model", MODELS_HERE)


def params(model="tiny_encoder", batch=2, seqlen=21, **fields):
    return OP.Params(model=model, batch=batch, seqlen=seqlen, **fields)


def attention(q, k, v, causal=False, scale=1.0):
    """Plain matmul, softmax, matmul, with a scale that may be wrong."""
    scores = q @ k.mT * (scale * q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def normed(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def losses_by_hand(case, inputs, weights):
    """Token losses, from the textbook's formulas, in float64."""
    shape, x = case.shape, weights["tokens.weight"][inputs["tokens"]] + weights["positions"]
    for layer in range(shape.layers):
        own = {name.removeprefix(f"blocks.{layer}."): w for name, w in weights.items()}
        q, k, v = np.split(normed(x, own, "norm1") @ own["qkv.weight"].T, 3, -1)
        heads = []
        for h in range(shape.num_heads):
            of_head = slice(h * shape.head_dim, (h + 1) * shape.head_dim)
            scores = q[..., of_head] @ k[..., of_head].swapaxes(1, 2) / np.sqrt(shape.head_dim)
            if shape.causal:
                scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(p / p.sum(-1, keepdims=True) @ v[..., of_head])
        x = x + np.concatenate(heads, -1) @ own["project.weight"].T + own["project.bias"]
        wide = normed(x, own, "norm2") @ own["widen.weight"].T + own["widen.bias"]
        gelu = wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        x = x + gelu @ own["narrow.weight"].T + own["narrow.bias"]
    x = normed(x, weights, "norm").reshape(-1, shape.hidden)
    x = x[inputs["predicted"]] if "predicted" in inputs else x
    logits = x @ weights["tokens.weight"].T
    peak = logits.max(-1, keepdims=True)
    total = np.log(np.exp(logits - peak).sum(-1)) + peak[:, 0]
    return total - logits[np.arange(len(x)), inputs["targets"]]


@each_model
def test_reference_is_the_textbook_model_and_its_slope(model, monkeypatch):
    monkeypatch.setattr(transformer, "LOGIT_ROWS", 4)  # several times
    case = params(model, seed=5)
    inputs = OP.inputs(case, "cpu")
    found = OP.reference(case, inputs)
    assert {t.dtype for t in found.values()} == {torch.float64}
    whole = {name: t.numpy() for name, t in inputs.items()}
    weights = {name: t.double().numpy() for name, t in split(inputs)[1].items()}
    np.testing.assert_allclose(found["losses"], losses_by_hand(case, whole, weights), rtol=1e-11)
    rng = np.random.default_rng()
    for name, weight in weights.items():
        names = [f"d {name}.{part}" for part in "qkv"] if name.endswith("qkv.weight") else [f"d {name}"]
        gradient = np.concatenate([found[key] for key in names])
        direction = rng.standard_normal(weight.shape)
        step = 1e-5
        far_back, back, there, far_there = (
            losses_by_hand(case, whole, {**weights, name: weight + way * step * direction}).mean()
            for way in (-2, -1, 1, 2)
        )
        slope = (8 * (there - back) - (far_there - far_back)) / (12 * step)  # exact to the step's fourth power
        assert slope == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-8), name


@each_model
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_plain_is_mixed_precision(model, dtype):
    case = params(model, dtype=dtype)
    inputs = OP.inputs(case, "cpu")
    exact, plain = OP.reference(case, inputs), OP.plain(case, inputs, getattr(torch, dtype))
    assert set(exact) == set(plain) == set(OP.gate_factors(case))
    for name, tensor in plain.items():
        assert tensor.dtype == torch.float32
        error = float((tensor - exact[name]).abs().max() / exact[name].abs().max())
        assert 0 < error < (0.02 if dtype == "float16" else 0.15), name


@each_model
def test_every_call_is_the_same_and_nothing_is_left_behind(model):
    case = params(model)
    inputs = OP.inputs(case, "cpu")
    before = {name: t.clone() for name, t in inputs.items()}
    run = training_call(lambda q, k, v: attention(q, k, v, case.shape.causal), case, inputs)
    first = {name: t.clone() for name, t in run().items()}
    for name, tensor in run().items():
        assert torch.equal(tensor, first[name]), name
    assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())
    assert Gate(OP, case, inputs).check(first).passed


def test_a_step_with_a_learning_rate_learns():
    case = params("tiny_decoder")
    batch, weights = split(OP.inputs(case, "cpu"))
    model = with_weights(case.shape, weights, torch.float32, lambda q, k, v: attention(q, k, v, causal=True))
    training = Training(model, torch.float16, learning_rate=1e-2)
    losses = [float(training.step(*batch)["losses"].mean()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("name", ["unfused_fp16", "sdpa_flash", "spark_attention"])
def test_a_right_attention_passes_in_deep_layers_too(name, deep):
    """Where tokens have grown alike, what a fused backward rounds in its row term shows in dq and dk."""
    case, inputs, gate = deep
    verdict = gate.check(discover()["training_step"][name].prepare(case, inputs, Target("cpu", "a CPU")).run())
    assert verdict.passed, verdict.reason


@pytest.fixture(scope="module")
def deep():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "tiny_encoder", Shape(10, 64, 2, 256, causal=False))
        case = params(seqlen=160)
        inputs = OP.inputs(case, "cpu")
        yield case, inputs, Gate(OP, case, inputs)


class Scaled(torch.autograd.Function):
    """The identity whose gradient is multiplied."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


FAULTS = {
    "scale of another head dim": lambda q, k, v: attention(q, k, v, True, scale=2**-0.5),
    "no causal mask": lambda q, k, v: attention(q, k, v),
    "softmax without effect": lambda q, k, v: v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1)[:, None],
    "dq is 0": lambda q, k, v: attention(q.detach(), k, v, True),
    "dk is 5 % large": lambda q, k, v: attention(q, Scaled.apply(k, 1.05), v, True),
    "dv is 5 % small": lambda q, k, v: attention(q, k, Scaled.apply(v, 0.95), True),
    "heads in another order": lambda q, k, v: attention(q, k, v, True).flip(1),
}


@pytest.fixture(scope="module")
def gated():
    case = params("tiny_decoder", batch=1, seqlen=48)
    inputs = OP.inputs(case, "cpu")
    return case, inputs, Gate(OP, case, inputs)


def test_layers_share_an_allowance(gated):
    _, _, gate = gated
    limits = {name: expected.limit for name, expected in gate.expectations.items()}
    assert len({OP.gate_group(name) for name in limits}) == 18
    for part in "qkv":
        assert limits[f"d blocks.0.qkv.weight.{part}"] == limits[f"d blocks.1.qkv.weight.{part}"]
    assert limits["d blocks.0.qkv.weight.q"] != limits["d blocks.0.qkv.weight.v"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_finds_a_wrong_attention(gated, fault):
    case, inputs, gate = gated
    outputs = training_call(lambda q, k, v: FAULTS[fault](q, k, v).to(v.dtype), case, inputs)()
    assert not gate.check(outputs).passed


@each_model
def test_flops_are_those_of_the_products(model):
    """Counted with an attention that keeps its probabilities and, as it does, without the causal mask's half."""
    case = params(model, batch=3, seqlen=16)
    run = training_call(attention, case, OP.inputs(case, "cpu"))
    with FlopCounterMode(display=False) as counter:
        run()
    layer = case.attention("forward").model_copy(update={"causal": False})
    counted = counter.get_total_flops() - 3 * case.shape.layers * OPS["attention"].flops(layer)
    said = OP.flops(case) - case.shape.layers * sum(
        OPS["attention"].flops(case.attention(direction)) for direction in ("forward", "backward")
    )
    assert counted == said


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_counted(model):
    with torch.device("meta"):
        made = Transformer(MODELS[model], 40, None)
    assert sum(p.numel() for p in made.parameters()) == MODELS[model].parameters(40)


def test_sizes_are_the_published_ones():
    """To a per cent, without the token types and the pooler that BERT has beside."""
    for name, millions in {"bert_base": 109.5, "bert_large": 335, "gpt2": 124.4, "gpt2_medium": 354.8}.items():
        positions = 512 if "bert" in name else 1024
        assert MODELS[name].parameters(positions) / 1e6 == pytest.approx(millions, rel=0.01)
        assert MODELS[name].head_dim == 64


def test_encoders_predict_15_per_cent_and_decoders_all():
    assert params("bert_base", batch=4, seqlen=512).predicted == round(0.15 * 2048)
    assert params("gpt2", batch=4, seqlen=512).predicted == 2048
    inputs = OP.inputs(params(seqlen=100), "cpu")
    places = inputs["predicted"]
    assert len(places) == len(set(places.tolist())) == len(inputs["targets"]) == 30
    assert places.max() < 200


def test_memory_grows_with_the_square_of_the_length_at_constant_tokens():
    sizes = [OP.peak_bytes_estimate(OP.Params(model="bert_base", tokens=16384, seqlen=s)) for s in (512, 4096, 16384)]
    assert sizes[0] < 30 * 2**30 < sizes[1] < 80 * 2**30 < 150 * 2**30 < sizes[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "gpt5", "batch": 1, "seqlen": 8}, "bert_base"),
        ({"model": "gpt2", "tokens": 100, "seqlen": 8}, "tokens=100 must be a positive multiple of seqlen=8"),
        ({"model": "gpt2", "tokens": 16, "batch": 2, "seqlen": 8}, "tokens and batch are both given"),
        ({"model": "gpt2", "batch": 1, "seqlen": 8, "dtype": "float32"}, "float16"),
        ({"model": "gpt2", "batch": 1, "seqlen": 1}, "greater than 1"),
    ],
)
def test_a_bad_case_says_what_would_be_right(fields, message):
    with pytest.raises(ValidationError, match=message):
        OP.Params.model_validate(fields)
