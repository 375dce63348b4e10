"""One training step of a language model, forward, backward and optimizer, of which the contenders differ in the
attention only.

The step is taken with a learning rate of 0: the same work, and the weights stay, so that each call computes the same
and is held against the float64 reference at full size. Encoders predict masked tokens, decoders the next one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from harness.case import CaseParams
from harness.lazy import lazy_import
from harness.ops import dense
from harness.ops.attention import Attention, AttentionParams
from harness.ops.base import Op, Tensors
from harness.ops.masks import causal_mask

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

MASKED = 0.15  # share of an encoder's tokens that it predicts, as BERT does


@dataclass(frozen=True)
class Shape:
    """A model's size. Vocabularies are padded as is usual for Tensor Cores."""

    layers: int
    hidden: int
    num_heads: int
    vocabulary: int
    causal: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    def parameters(self, seqlen: int) -> int:
        """Weights of the model of harness/ops/transformer.py with positions for `seqlen` tokens."""
        layer = 12 * self.hidden**2 + 10 * self.hidden
        return self.layers * layer + (self.vocabulary + seqlen + 2) * self.hidden


MODELS = {
    "bert_base": Shape(12, 768, 12, 30528, causal=False),
    "bert_large": Shape(24, 1024, 16, 30528, causal=False),
    "gpt2": Shape(12, 768, 12, 50304, causal=True),
    "gpt2_medium": Shape(24, 1024, 16, 50304, causal=True),
    "tiny_encoder": Shape(2, 64, 2, 256, causal=False),
    "tiny_decoder": Shape(2, 64, 2, 256, causal=True),
}
# Bytes, by what is held; read off the model under autocast with float32 weights.
WEIGHT, STATE, GRADIENT = 4, 12, 4  # of one weight: itself, with AdamW's moments, its gradient
SAVED = 36  # of one token, layer and hidden unit, for the backward
LOGIT = 16  # of one logit: float16, float32, its softmax, its gradient
HELD = 6  # contenders of a case that are ready at the same time


def batch_of_tokens(given: Any) -> Any:
    """A case's fields with batch = tokens / seqlen, where tokens are given. Raises ValueError where they cannot be."""
    fields = dict(given)
    if "tokens" not in fields:
        return fields
    tokens, seqlen = fields.pop("tokens"), fields.get("seqlen")
    if "batch" in fields:
        raise ValueError("tokens and batch are both given; remove one")
    if not all(type(x) is int and x > 0 for x in (tokens, seqlen)) or tokens % seqlen:
        raise ValueError(f"tokens={tokens!r} must be a positive multiple of seqlen={seqlen!r}")
    return {**fields, "batch": tokens // seqlen}


class TrainingStepParams(CaseParams):
    """A case. `tokens` gives batch = tokens / seqlen."""

    dtype: Literal["float16", "bfloat16"] = "float16"
    model: Literal[tuple(MODELS)]
    batch: int = Field(gt=0)
    seqlen: int = Field(gt=1)

    @model_validator(mode="before")
    @classmethod
    def _expand_tokens(cls, given: Any) -> Any:
        return batch_of_tokens(given)

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    @property
    def tokens(self) -> int:
        return self.batch * self.seqlen

    @property
    def predicted(self) -> int:
        """Tokens whose loss is taken."""
        return self.tokens if self.shape.causal else max(1, round(MASKED * self.tokens))

    def attention(self, direction: Literal["forward", "backward"]) -> AttentionParams:
        """One layer's attention."""
        shape = self.shape
        return AttentionParams.model_validate({
            "direction": direction, "dtype": self.dtype, "batch": self.batch, "num_heads": shape.num_heads,
            "seqlen": self.seqlen, "head_dim": shape.head_dim, "causal": shape.causal,
        })  # fmt: skip

    def slug(self) -> str:
        return f"{self.model}.b{self.batch}.s{self.seqlen}.{self.dtype}.seed{self.seed}"


class TrainingStep(Op):
    """Inputs: tokens [batch, seqlen] and targets, uniform over the vocabulary; an encoder's predicted places; weights
    by name. Outputs: token losses, and the gradient of their mean by each weight, "d <name>", float32.
    """

    name = "training_step"
    Params = TrainingStepParams
    _attention = Attention()

    def inputs(self, params: TrainingStepParams, device: str) -> Tensors:
        from harness.ops.transformer import draw_weights

        options = {"generator": torch.Generator(device).manual_seed(params.seed), "device": device}
        vocabulary = params.shape.vocabulary
        batch = {
            "tokens": torch.randint(vocabulary, (params.batch, params.seqlen), **options),
            "targets": torch.randint(vocabulary, (params.predicted,), **options),
        }
        if not params.shape.causal:
            batch["predicted"] = torch.randperm(params.tokens, **options)[: params.predicted].sort().values
        return {**batch, **draw_weights(params.shape, params.seqlen, options)}

    def reference(self, params: TrainingStepParams, inputs: Tensors) -> dict[str, Tensor]:
        return self.plain(params, inputs, torch.float64)

    def plain(self, params: TrainingStepParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        """Unfused attention in `dtype`, and all else under autocast where that is a half precision.

        Its backward takes the row term of the softmax from the rounded output, as every fused one does. Where tokens
        have grown alike, in deep layers, that error does not average out: the gradients of the projections to queries
        and keys have about ten times that of autograd's backward, with FlashAttention-2, cuDNN and ours alike.
        """
        from harness.ops import transformer

        def mask(heads: range, rows: range) -> tuple[Tensor | None, None]:
            seqlen, device = params.seqlen, inputs["tokens"].device
            return causal_mask(rows, seqlen, seqlen, device) if params.shape.causal else None, None

        def plain(tensors: Tensors) -> dict[str, Tensor]:
            return dense.attention(tensors, dtype, mask, row_term_of_out=True)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return transformer.PlainAttention.apply(q, k, v, plain)

        batch, weights = split(inputs)
        of_weights = torch.float32 if dtype.itemsize == 2 else dtype
        model = transformer.with_weights(params.shape, weights, of_weights, attention, recompute=True)
        return transformer.plain_step(model, dtype, *batch)

    def gate_factors(self, params: TrainingStepParams) -> dict[str, float]:
        from harness.ops.transformer import gradient_names

        return {"losses": 2.0, **dict.fromkeys(gradient_names(params.shape, params.seqlen), 3.0)}

    def gate_group(self, output: str) -> str:
        """A weight's gradients in all layers: the errors of one layer add up to a few numbers, whose ratios vary."""
        return re.sub(r"\.\d+\.", ".", output)

    def flops(self, params: TrainingStepParams) -> float:
        """Of the matrix products: three times the forward's, and an attention backward of 2.5 forwards."""
        shape = params.shape
        layers = 12 * shape.layers * shape.hidden**2 * params.tokens
        logits = shape.vocabulary * shape.hidden * params.predicted
        attention = sum(self._attention.flops(params.attention(way)) for way in ("forward", "backward"))
        return 6.0 * (layers + logits) + shape.layers * attention

    def bytes_floor(self, params: TrainingStepParams) -> int:
        """Weights, gradients and AdamW's two moments: the weights and moments read and written, gradients written."""
        weight_bytes = (2 * STATE + GRADIENT) * params.shape.parameters(params.seqlen)
        return weight_bytes + 8 * (params.tokens + params.predicted)

    def peak_bytes_estimate(self, params: TrainingStepParams) -> int:
        shape, units = params.shape, params.tokens * params.shape.hidden
        weights = shape.parameters(params.seqlen)
        held = (2 * WEIGHT + 8 + HELD * STATE + GRADIENT) * weights  # inputs, their copy, references, contenders
        scores = 4 * params.batch * shape.num_heads * params.seqlen**2  # of the math backend, in float32
        logits = LOGIT * params.predicted * shape.vocabulary
        step = SAVED * units * shape.layers + (shape.layers + 3) * scores + logits
        reference = 16 * weights + 8 * units * (shape.layers + 30) + 6 * dense.SCORE_BYTES
        return held + max(step, reference)

    def columns(self, params: TrainingStepParams) -> dict[str, Any]:
        shape, layer = params.shape, self._attention.columns(params.attention("forward"))
        size = {"layers": shape.layers, "parameters": shape.parameters(params.seqlen), "tokens": params.tokens}
        return {**layer, "direction": None, "seed": params.seed, "model": params.model, **size}


def split(inputs: Tensors) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """The batch as the model takes it, and the weights by name."""
    names = ("tokens", "targets", "predicted")
    return [inputs.get(name) for name in names], {name: t for name, t in inputs.items() if name not in names}
