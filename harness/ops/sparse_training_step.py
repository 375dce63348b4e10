"""One training step of the sparse-training paper's encoder, of which the contenders differ in the method of attention.

As the op training_step, with a learning rate of 0, and without dropout, so that each call computes the same. A method
that computes another function than SAT's sparse phase is held against the reference of its own.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from harness.case import CaseParams
from harness.lazy import lazy_import
from harness.ops import dense
from harness.ops.base import Op, Tensors
from harness.ops.block_sparse_attention import BlockSparseAttention, BlockSparseParams, block_pattern
from harness.ops.masks import pattern_mask
from harness.ops.training_step import GRADIENT, HELD, STATE, WEIGHT, batch_of_tokens
from impl.sparse_training.labels import LABELS
from impl.sparse_training.recipes import HEADS, HIDDEN, LISTOPS, WIDTH, Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from impl.sparse_training.methods.base import Attention
    from impl.sparse_training.model import Encoder

torch = lazy_import("torch")

VOCABULARY, CLASSES = LISTOPS.vocabulary, LISTOPS.classes
SAVED = 48  # widths of float32 of one token and layer, for the backward
SCORE = 6  # bytes of one score of a materialised map kept for the backward: its softmax in float32 and float16
GRADIENTS = 8  # bytes of one score in that backward, of the layer it is at
REFERENCE = 12_000  # operations for one score of a layer in float64, both ways, by the time they take on an H200


class SparseTrainingStepParams(CaseParams):
    """A case. `tokens` gives batch = tokens / seqlen. The pattern, one for all layers, is random."""

    dtype: Literal["float16"] = "float16"
    batch: int = Field(gt=0)
    seqlen: int = Field(gt=1)
    block: Literal[32, 64, 128] = 64
    density: float = Field(gt=0, le=1)
    layers: int = Field(4, gt=0)
    method: Literal[tuple(LABELS)] = Field("sat", description="what the reference computes; a contender sets it")

    @model_validator(mode="before")
    @classmethod
    def _expand_tokens(cls, given: Any) -> Any:
        return batch_of_tokens(given)

    @property
    def tokens(self) -> int:
        return self.batch * self.seqlen

    @property
    def recipe(self) -> Recipe:
        """As the trainer's methods take it; sequences have their full length, which no mask need say."""
        sizes = {"seqlen": self.seqlen, "layers": self.layers, "block": self.block, "density": self.density}
        return dataclasses.replace(LISTOPS, task="step", batch=self.batch, **sizes)

    def attention(self, direction: Literal["forward", "backward"]) -> BlockSparseParams:
        """One layer's attention in SAT's sparse phase."""
        return BlockSparseParams.model_validate({
            "direction": direction, "dtype": self.dtype, "seed": self.seed, "batch": self.batch, "num_heads": HEADS,
            "seqlen": self.seqlen, "head_dim": WIDTH // HEADS, "causal": False, "block": self.block,
            "density": self.density, "softmax": "pruned_as_zero",
        })  # fmt: skip

    def slug(self) -> str:
        return (
            f"l{self.layers}.b{self.batch}.s{self.seqlen}.block{self.block}.density{self.density:g}.{self.dtype}"
            f".seed{self.seed}"
        )


class SparseTrainingStep(Op):
    """Inputs: tokens [batch, seqlen], their lengths, labels, the pattern bool [1, blocks, blocks], and weights by name.
    Outputs: losses [batch], and the gradient of their mean by each weight, "d <name>", float32.
    """

    name = "sparse_training_step"
    Params = SparseTrainingStepParams
    _attention = BlockSparseAttention()

    def inputs(self, params: SparseTrainingStepParams, device: str) -> Tensors:
        generator = torch.Generator().manual_seed(params.seed)
        batch = {
            "tokens": torch.randint(1, VOCABULARY, (params.batch, params.seqlen), generator=generator),
            "lengths": torch.full((params.batch,), params.seqlen),
            "labels": torch.randint(CLASSES, (params.batch,), generator=generator),
            "pattern": torch.from_numpy(block_pattern(params.attention("forward"))[None]),
        }
        weights = dict(_encoder(params, [torch.nn.Identity()] * params.layers).named_parameters())
        return {name: tensor.detach().to(device) for name, tensor in {**batch, **weights}.items()}

    def reference(self, params: SparseTrainingStepParams, inputs: Tensors) -> dict[str, Tensor]:
        return self.plain(params, inputs, torch.float64)

    def plain(self, params: SparseTrainingStepParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        """Dense and block-sparse methods by unfused attention, whose backward takes its row term as fused ones do. What
        has no kernel of its own, a projection or features, is the method itself, so its own yardstick."""
        from harness.ops.transformer import plain_step

        wide = torch.promote_types(dtype, torch.float32)
        attentions = [_plain_attention(params, inputs, layer, dtype) for layer in methods_of(params)]
        return plain_step(encoder(params, inputs, attentions, wide), dtype, *batch_of(inputs))

    def gate_factors(self, params: SparseTrainingStepParams) -> dict[str, float]:
        names = [name for name, _ in _encoder(params, methods_of(params)).named_parameters()]
        return {"losses": 2.0, **{f"d {name}": 3.0 for name in names}}

    def gate_group(self, output: str) -> str:
        """A weight's gradients in all layers, as those of training_step."""
        return re.sub(r"\.\d+\.", ".", output)

    def flops(self, params: SparseTrainingStepParams) -> float:
        """Of SAT's sparse phase: the layers' matrix products, three times, and attention over the kept pairs."""
        layer = 2 * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) * params.tokens
        attention = sum(self._attention.flops(params.attention(way)) for way in ("forward", "backward"))
        return params.layers * (3.0 * layer + attention)

    def reference_flops(self, params: SparseTrainingStepParams) -> float:
        """Unfused; each method has its own."""
        return REFERENCE * params.layers * _scores(params)

    def bytes_floor(self, params: SparseTrainingStepParams) -> int:
        return (2 * STATE + GRADIENT) * _parameters(params) + 8 * params.tokens

    def peak_bytes_estimate(self, params: SparseTrainingStepParams) -> int:
        scores = _scores(params)
        step = params.layers * (4 * SAVED * WIDTH * params.tokens + SCORE * scores) + GRADIENTS * scores
        held = (2 * WEIGHT + 8 + HELD * STATE) * _parameters(params)
        return held + max(step, 8 * SAVED * WIDTH * params.tokens * params.layers + 6 * dense.SCORE_BYTES)

    def columns(self, params: SparseTrainingStepParams) -> dict[str, Any]:
        layer = self._attention.columns(params.attention("forward"))
        size = {"layers": params.layers, "parameters": _parameters(params), "tokens": params.tokens}
        return {**layer, "direction": None, "softmax": None, "model": "sat_encoder", **size}


def _scores(params: SparseTrainingStepParams) -> int:
    """Of one layer."""
    return params.batch * HEADS * params.seqlen**2


def _parameters(params: SparseTrainingStepParams) -> int:
    """Weights of the encoder, without a method's own."""
    layer = 4 * WIDTH**2 + 4 * WIDTH + 2 * WIDTH * HIDDEN + HIDDEN + WIDTH + 4 * WIDTH
    classifier = 2 * WIDTH + HIDDEN * (WIDTH + 1) + CLASSES * (HIDDEN + 1)
    return params.layers * layer + (VOCABULARY + params.seqlen) * WIDTH + classifier


def batch_of(inputs: Tensors) -> list[Tensor]:
    """The batch as the model of `encoder` takes it."""
    return [inputs[name] for name in ("tokens", "lengths", "labels")]


def methods_of(params: SparseTrainingStepParams) -> list[Attention]:
    """Each layer's attention by `params.method`, whose own weights and features are a function of the case's seed."""
    from impl.sparse_training.methods import METHODS

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        return [METHODS[params.method].attention(params.recipe) for _ in range(params.layers)]


def pattern_of(params: SparseTrainingStepParams, inputs: Tensors) -> Tensor:
    """bool [blocks, blocks]: the method's own, or the inputs'."""
    from impl.sparse_training.methods import METHODS

    pattern, fixed = inputs["pattern"][0], METHODS[params.method].fixed
    return fixed(len(pattern)).to(pattern.device) if fixed else pattern


def encoder(
    params: SparseTrainingStepParams, inputs: Tensors, attentions: list[nn.Module], dtype: torch.dtype
) -> Encoder:
    """The model with the inputs' weights in `dtype`; it returns the losses of `batch_of` the inputs."""
    model = _encoder(params, attentions)
    known = {name: inputs[name] for name, _ in model.named_parameters() if name in inputs}
    model.load_state_dict(known, strict=False)
    return model.to(inputs["tokens"].device, dtype)


def _encoder(params: SparseTrainingStepParams, attentions: list[nn.Module]) -> Encoder:
    from harness.ops.encoder_losses import EncoderLosses

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        return EncoderLosses(VOCABULARY, params.seqlen, CLASSES, attentions)


def _plain_attention(
    params: SparseTrainingStepParams, inputs: Tensors, method: Attention, dtype: torch.dtype
) -> nn.Module:
    from harness.ops.encoder_losses import PlainLayer
    from impl.sparse_training.methods.block_sparse import BlockSparse
    from impl.sparse_training.methods.dense import Flash, Materialised

    if not isinstance(method, BlockSparse | Flash | Materialised):
        return method
    sparse = isinstance(method, BlockSparse)
    kept = pattern_of(params, inputs)[None] if sparse else None
    pruned_as_zero = sparse and method.softmax == "pruned_as_zero"

    def mask(heads: range, rows: range) -> tuple[None, Tensor | None]:
        return None, None if kept is None else pattern_mask(kept, params.block, rows, params.seqlen)

    def plain(tensors: Tensors) -> dict[str, Tensor]:
        return dense.attention(tensors, dtype, mask, pruned_as_zero, row_term_of_out=True)

    return PlainLayer(plain)
