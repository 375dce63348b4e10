"""Training steps take name, limits and sources from the attention that stands in them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from harness.contender import ROOT, Target, Unsupported, discover
from harness.exchange import AttentionContender, TrainingStepContender
from harness.ops import OPS

STEPS = discover()["training_step"]
CPU = Target("cpu", "a CPU")
VOLTA = Target("cuda", "Tesla V100", (7, 0), 16 * 2**30)
OP = OPS["training_step"]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_the_attention_of_its_name(name):
    step, attention = STEPS[name], discover()["attention"][name]
    assert type(step.attention) is type(attention)
    assert (step.label, step.role, step.source) == (attention.label, attention.role, attention.source)
    file = str(Path(inspect.getfile(type(attention))).relative_to(ROOT))
    assert {file, "harness/ops/transformer.py", *attention.sources} <= set(step.sources), "its hash follows from them"


@pytest.mark.parametrize("model", ["bert_base", "gpt2"])
def test_limits_are_those_of_the_attention_backward(model):
    params = OP.Params(model=model, batch=1, seqlen=512)
    assert "compute capability 8.0" in STEPS["sdpa_flash"].refusal(params, VOLTA)[1]
    assert STEPS["sdpa_efficient"].refusal(params, VOLTA) is None
    assert STEPS["spark_attention"].refusal(params, VOLTA) is None


class Refusing(AttentionContender):
    name = label = summary = source = "refusing"
    role = "baseline"

    def function(self, params, target):
        def attention(q, k, v):
            raise Unsupported(f"no attention of {tuple(q.shape)} here; use another")

        return attention

    def prepare(self, params, inputs, target):
        raise NotImplementedError


class RefusingStep(TrainingStepContender):
    attention = Refusing()


def test_the_attention_sees_heads_in_half_precision_and_may_refuse_at_the_first_call():
    params = OP.Params(model="tiny_encoder", batch=3, seqlen=5)
    with pytest.raises(Unsupported, match=r"no attention of \(3, 2, 5, 32\) here"):
        RefusingStep().prepare(params, OP.inputs(params, "cpu"), CPU)


def test_the_attention_is_called_outside_of_autocast():
    seen = []

    class Watching(Refusing):
        def function(self, params, target):
            def attention(q, k, v):
                seen.append((q.dtype, torch.is_autocast_enabled("cpu"), q.stride(-1)))
                return v

            return attention

    class WatchingStep(TrainingStepContender):
        attention = Watching()

    params = OP.Params(model="tiny_decoder", batch=1, seqlen=4, dtype="bfloat16")
    WatchingStep().prepare(params, OP.inputs(params, "cpu"), CPU)
    assert seen == [(torch.bfloat16, False, 1)] * params.shape.layers
