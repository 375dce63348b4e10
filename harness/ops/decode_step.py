"""A decoding step of an OPT model whose matrices were pruned, with a key-value cache: one new token for each sequence.

The step is that of the last of the new tokens, when the cache is full: the longest one. The cache is what the
contender itself computes from the tokens before. The reference has none: it is a forward of whole sequences, layer by
layer, and each layer's output is an output of the op. Weights are no inputs, as several copies of a large model fit
nowhere: they are a function of the params, made or read, and pruned, one matrix at a time (harness/ops/opt_weights.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from harness.case import CaseParams
from harness.lazy import lazy_import
from harness.ops.base import Op, Tensors
from harness.ops.checkpoint import check_index, read_index
from harness.ops.dense import SCORE_BYTES

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

POSITIONS = 2048
POSITION_OFFSET = 2  # OPT's positions begin at the third row of their table
PRUNED = ("qkv", "project", "widen", "narrow")  # matrices of a layer; embeddings stay dense
PREFILL_TOKENS = 4096  # whose activations are held at once while a contender's cache is filled
REFERENCE_TOKENS = 576  # whose activations are held at once in float64
CHUNK_ELEMENTS = 2**24  # of a weight that the reference holds at once in another dtype

# Names in a checkpoint, from "decoder." on.
AROUND = {
    "embedding": "embed_tokens.weight",
    "positions": "embed_positions.weight",
    "norm.weight": "final_layer_norm.weight",
    "norm.bias": "final_layer_norm.bias",
}
IN_LAYER = {
    "norm1": ["self_attn_layer_norm"],
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "project": ["self_attn.out_proj"],
    "norm2": ["final_layer_norm"],
    "widen": ["fc1"],
    "narrow": ["fc2"],
}


@dataclass(frozen=True)
class OptShape:
    """A model's size (Zhang et al., OPT, 2022). Pre-norm, ReLU, biases, an output layer tied to the embedding."""

    layers: int
    hidden: int
    num_heads: int
    vocabulary: int = 50272

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    def of_layer(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's weights and biases by name."""
        h = self.hidden
        matrices = {"qkv": (3 * h, h), "project": (h, h), "widen": (4 * h, h), "narrow": (h, 4 * h)}
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("norm1", "norm2"):
            shapes |= {f"{name}.weight": (h,), f"{name}.bias": (h,)}
        for name, shape in matrices.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return shapes

    def around(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what is not in a layer."""
        h = self.hidden
        table = {"embedding": (self.vocabulary, h), "positions": (POSITIONS + POSITION_OFFSET, h)}
        return {**table, "norm.weight": (h,), "norm.bias": (h,)}

    @property
    def pruned_elements(self) -> int:
        """Elements of the matrices that are pruned."""
        return 12 * self.layers * self.hidden**2

    @property
    def dense_elements(self) -> int:
        """Of everything else: embeddings, biases and norms."""
        return self.hidden * (self.vocabulary + POSITIONS + POSITION_OFFSET + 2 + 13 * self.layers)


OPT_MODELS = {
    "opt_125m": OptShape(12, 768, 12),
    "opt_1_3b": OptShape(24, 2048, 32),
    "opt_2_7b": OptShape(32, 2560, 32),
    "opt_6_7b": OptShape(32, 4096, 32),
    "opt_13b": OptShape(40, 5120, 40),
    "opt_30b": OptShape(48, 7168, 56),
    "opt_66b": OptShape(64, 9216, 72),
    "opt_175b": OptShape(96, 12288, 96),
    "tiny_opt": OptShape(2, 64, 2, 256),
}


class DecodeStepParams(CaseParams):
    """A case. `checkpoint` is a folder with the model's weights as safetensors; without it they are random."""

    dtype: Literal["float16"] = "float16"
    model: Literal[tuple(OPT_MODELS)]
    batch: int = Field(gt=0)
    prompt: int = Field(64, gt=0)
    new_tokens: int = Field(512, gt=0)
    sparsity: float = Field(ge=0, lt=1)
    checkpoint: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> DecodeStepParams:
        if self.context > POSITIONS:
            raise ValueError(f"prompt + new_tokens = {self.context}; OPT has positions for at most {POSITIONS}")
        if self.checkpoint is not None:
            check_index(self.checkpoint, read_index(self.checkpoint), checkpoint_shapes(self.shape))
        return self

    @property
    def shape(self) -> OptShape:
        return OPT_MODELS[self.model]

    @property
    def context(self) -> int:
        """Tokens that the last new one attends to, itself included."""
        return self.prompt + self.new_tokens

    @property
    def cache_bytes(self) -> int:
        return 4 * self.shape.layers * self.shape.hidden * self.batch * self.context

    def slug(self) -> str:
        weights = f"seed{self.seed}"
        if self.checkpoint is not None:
            weights += f".{hashlib.sha256(self.checkpoint.encode()).hexdigest()[:8]}"
        sizes = f"b{self.batch}.p{self.prompt}.t{self.new_tokens}"
        return f"{self.model}.{sizes}.s{self.sparsity:g}.{self.dtype}.{weights}"


class DecodeStep(Op):
    """Inputs: tokens [batch, context]. Outputs for the last of them: the residual stream after each layer,
    "layer.<i>" [batch, hidden], and "logits" [batch, vocabulary].
    """

    name = "decode_step"
    Params = DecodeStepParams

    def inputs(self, params: DecodeStepParams, device: str) -> Tensors:
        options = {"generator": torch.Generator(device).manual_seed(params.seed), "device": device}
        return {"tokens": torch.randint(params.shape.vocabulary, (params.batch, params.context), **options)}

    def reference(self, params: DecodeStepParams, inputs: Tensors) -> dict[str, Tensor]:
        return self.plain(params, inputs, torch.float64)

    def plain(self, params: DecodeStepParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        from harness.ops.decoder import full_forwards

        return full_forwards(params, inputs["tokens"], [dtype])[0]

    def plain_and_reference(self, params: DecodeStepParams, inputs: Tensors, dtype: Any) -> tuple[dict, dict]:
        """Both on the same weights, which are made once: for a large model that takes as long as the plain forward."""
        from harness.ops.decoder import full_forwards

        plain, reference = full_forwards(params, inputs["tokens"], [dtype, torch.float64])
        return plain, reference

    def gate_factors(self, params: DecodeStepParams) -> dict[str, float]:
        return dict.fromkeys([*(f"layer.{i}" for i in range(params.shape.layers)), "logits"], 2.0)

    def flops(self, params: DecodeStepParams) -> float:
        """Of dense matrix products, and of the attention."""
        shape = params.shape
        products = shape.pruned_elements + shape.vocabulary * shape.hidden
        return 2.0 * params.batch * (products + 2 * shape.layers * shape.hidden * params.context)

    def reference_flops(self, params: DecodeStepParams) -> float:
        """A whole sequence for the one token of a step."""
        return params.context * self.flops(params)

    def bytes_floor(self, params: DecodeStepParams) -> int:
        """With dense weights."""
        return 2 * params.shape.pruned_elements + bytes_besides(params)

    def peak_bytes_estimate(self, params: DecodeStepParams) -> int:
        """Of a dense contender, and of the reference beside it."""
        return needed_bytes(params, 2 * params.shape.pruned_elements)

    def columns(self, params: DecodeStepParams) -> dict[str, Any]:
        shape = params.shape
        size = {"layers": shape.layers, "parameters": shape.pruned_elements + shape.dense_elements}
        own = ("dtype", "seed", "model", "batch", "sparsity", "prompt", "new_tokens")
        heads = {"num_heads": shape.num_heads, "head_dim": shape.head_dim, "seqlen_q": 1, "seqlen_k": params.context}
        return {**{name: getattr(params, name) for name in own}, **size, **heads, "tokens": params.batch}


def checkpoint_shapes(shape: OptShape) -> dict[str, tuple[int, ...]]:
    """Tensors of a checkpoint that the model reads, by the names that they have there."""
    found = {theirs: shape.around()[ours] for ours, theirs in AROUND.items()}
    for layer in range(shape.layers):
        for ours, whole in shape.of_layer().items():
            for theirs in in_checkpoint(layer, ours):
                rows = whole[0] // 3 if ours.startswith("qkv") else whole[0]
                found[theirs] = (rows, *whole[1:])
    return found


def in_checkpoint(layer: int, name: str) -> list[str]:
    """The tensors of a checkpoint that, one below the other, are the weight or bias `name` of a layer."""
    module, kind = name.split(".")
    return [f"layers.{layer}.{theirs}.{kind}" for theirs in IN_LAYER[module]]


def bytes_besides(params: DecodeStepParams) -> int:
    """What a step moves besides the pruned matrices: the output layer, biases, norms, the cache and the logits."""
    shape = params.shape
    read = 2 * shape.hidden * (shape.vocabulary + 2 + 13 * shape.layers)
    return read + params.cache_bytes + 2 * params.batch * shape.vocabulary


def needed_bytes(params: DecodeStepParams, pruned_bytes: float) -> int:
    """Memory of a decoder whose pruned matrices take `pruned_bytes`: weights, cache, and what making it takes (a dense
    matrix, and the activations of the prompt's and context's tokens, which are more than conversion takes), or the
    reference beside it."""
    shape = params.shape
    activations = 2 * 20 * shape.hidden * max(PREFILL_TOKENS, params.context)
    beside = max(_largest_matrix(shape) + activations, reference_bytes(params))
    return int(pruned_bytes) + 2 * shape.dense_elements + params.cache_bytes + beside


def reference_bytes(params: DecodeStepParams) -> int:
    """Memory that the reference and the plain forward take: the residual stream of all tokens in both dtypes; in
    float64 the activations of as many tokens as are held at once; and two matrices with a chunk of one and of its
    product, or those of the attention, half as large, with its scores."""
    shape, tokens = params.shape, max(REFERENCE_TOKENS, params.context)
    streams = 10 * shape.hidden * params.batch * params.context
    activations = 8 * 7 * shape.hidden * min(tokens, params.batch * params.context)
    matrix = _largest_matrix(shape)
    return streams + activations + max(2 * matrix + 2 * 8 * CHUNK_ELEMENTS, matrix + 4 * SCORE_BYTES)


def _largest_matrix(shape: OptShape) -> int:
    return 2 * 4 * shape.hidden**2
