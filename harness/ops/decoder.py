"""OPT with a key-value cache, whose products by the pruned matrices are exchanged, and the same model in plain PyTorch
without a cache.

Imports torch; planning must not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, relu, scaled_dot_product_attention

from harness.ops import dense
from harness.ops.decode_step import (
    CHUNK_ELEMENTS,
    POSITION_OFFSET,
    PREFILL_TOKENS,
    PRUNED,
    REFERENCE_TOKENS,
    DecodeStepParams,
)
from harness.ops.masks import causal_mask
from harness.ops.opt_weights import OptWeights
from harness.ops.spmm import float32_reductions

MakeProduct = Callable[[Tensor, Tensor], nn.Module]  # x -> x W^T + bias, from W [out, in] and the bias [out]


@dataclass
class Layer:
    """cache: keys and values [2, batch, heads, context, head_dim], filled as far as tokens were given."""

    norms: dict[str, Tensor]
    products: dict[str, nn.Module]
    cache: Tensor


class Decoder:
    """The model for `batch` sequences of up to `context` tokens; made a matrix at a time."""

    def __init__(self, params: DecodeStepParams, device: str, make: MakeProduct) -> None:
        shape, weights = params.shape, OptWeights(params, device)
        self._num_heads = shape.num_heads
        self._around = {name: weights.around(name) for name in shape.around()}
        cache = (2, params.batch, shape.num_heads, params.context, shape.head_dim)
        self.layers = []
        for i in range(shape.layers):
            norms = {name: weights.of_layer(i, name) for name in shape.of_layer() if name.startswith("norm")}
            products = {
                name: make(weights.of_layer(i, f"{name}.weight"), weights.of_layer(i, f"{name}.bias"))
                for name in PRUNED
            }
            self.layers.append(Layer(norms, products, torch.empty(cache, dtype=torch.float16, device=device)))

    def prefill(self, tokens: Tensor) -> None:
        """Fill the cache from its beginning with tokens [batch, n], a few sequences at a time."""
        sequences = max(1, PREFILL_TOKENS // max(1, tokens.shape[1]))
        for begin in range(0, len(tokens) if tokens.shape[1] else 0, sequences):
            rows = slice(begin, begin + sequences)
            x = self._embed(tokens[rows], 0)
            for layer in self.layers:
                x = self._through(layer, x, rows, 0)

    def step(self, tokens: Tensor, position: int) -> dict[str, Tensor]:
        """Outputs of the op decode_step for tokens [batch, 1] at `position`, where the cache is filled up to there."""
        x, outputs = self._embed(tokens, position), {}
        for i, layer in enumerate(self.layers):
            x = self._through(layer, x, slice(None), position)
            outputs[f"layer.{i}"] = x[:, 0]
        outputs["logits"] = self._logits(x[:, 0])
        return outputs

    def parts(self, batch: int) -> dict[str, Callable[[], dict[str, Tensor]]]:
        """Parts of a step as calls of their own, on made-up activations: all layers' products, all layers' attention,
        the output layer."""
        embedding = self._around["embedding"]
        hidden = torch.randn(batch, 1, embedding.shape[1], dtype=embedding.dtype, device=embedding.device)
        wide = hidden.repeat(1, 1, 4)
        query = hidden.unflatten(-1, (self._num_heads, -1)).transpose(1, 2)

        def products() -> dict[str, Tensor]:
            for layer in self.layers:
                for name, product in layer.products.items():
                    out = product(wide if name == "narrow" else hidden)
            return {"out": out}

        def attention() -> dict[str, Tensor]:
            for layer in self.layers:
                out = scaled_dot_product_attention(query, *layer.cache)
            return {"out": out}

        return {"products": products, "attention": attention, "output": lambda: {"out": self._logits(hidden[:, 0])}}

    @property
    def nbytes(self) -> int:
        """Memory of weights and cache."""
        held = [*self._around.values()]
        for layer in self.layers:
            held += [*layer.norms.values(), layer.cache]
            for product in layer.products.values():
                held += [*product.parameters(), *product.buffers()]
        return sum(tensor.nbytes for tensor in held)

    def _embed(self, tokens: Tensor, position: int) -> Tensor:
        return _embed(self._around["embedding"], self._around["positions"], tokens, position, torch.float16)

    def _logits(self, x: Tensor) -> Tensor:
        return linear(_norm(x, self._around, "norm"), self._around["embedding"])

    def _through(self, layer: Layer, x: Tensor, rows: slice, position: int) -> Tensor:
        """x [rows, n, hidden] behind the layer; the tokens stand from `position` on: several only at the beginning."""
        qkv = layer.products["qkv"](_norm(x, layer.norms, "norm1"))
        heads = qkv.unflatten(-1, (3, self._num_heads, -1)).permute(2, 0, 3, 1, 4)
        end = position + x.shape[1]
        layer.cache[:, rows, :, position:end] = heads[1:]
        out = scaled_dot_product_attention(heads[0], *layer.cache[:, rows, :, :end], is_causal=x.shape[1] > 1)
        x = x + layer.products["project"](out.transpose(1, 2).flatten(2))
        return x + layer.products["narrow"](relu(layer.products["widen"](_norm(x, layer.norms, "norm2"))))


def full_forwards(params: DecodeStepParams, tokens: Tensor, dtypes: Sequence[Any]) -> list[dict[str, Tensor]]:
    """Outputs of the op decode_step in each of the dtypes, from forwards of whole sequences; a weight is made once."""
    shape, weights = params.shape, OptWeights(params, tokens.device)
    tables = [weights.around(name) for name in ("embedding", "positions")]
    streams = [_embed(*tables, tokens, 0, dtype) for dtype in dtypes]
    del tables  # made again for the logits: beside a contender of a large model there is little room
    outputs: list[dict[str, Tensor]] = [{} for _ in dtypes]
    sequences = max(1, REFERENCE_TOKENS // params.context)
    with float32_reductions():
        for i in range(shape.layers):
            for half, modules in _HALVES.items():
                own = {name: weights.of_layer(i, name) for name in shape.of_layer() if name.split(".")[0] in modules}
                for part in (part for x in streams for part in x.split(sequences)):
                    part += half(shape.num_heads, own, part)
                del own  # before the next ones are made
            for x, found in zip(streams, outputs, strict=True):
                found[f"layer.{i}"] = x[:, -1].clone()
        around = {name: weights.around(name) for name in shape.around() if name != "positions"}
        for x, found in zip(streams, outputs, strict=True):
            found["logits"] = _plain_product(_norm(x[:, -1], around, "norm"), around["embedding"])
    return outputs


def _plain_attention(num_heads: int, own: dict[str, Tensor], x: Tensor) -> Tensor:
    def mask(heads: range, rows: range) -> tuple[Tensor, None]:
        return causal_mask(rows, x.shape[1], x.shape[1], x.device), None

    heads = _plain_linear(_norm(x, own, "norm1"), own, "qkv").unflatten(-1, (3, num_heads, -1)).transpose(1, 3)
    attended = dense.attention(dict(zip("qkv", heads.unbind(2), strict=True)), x.dtype, mask)["out"]
    return _plain_linear(attended.transpose(1, 2).flatten(2), own, "project")


def _plain_mlp(num_heads: int, own: dict[str, Tensor], x: Tensor) -> Tensor:
    return _plain_linear(_plain_linear(_norm(x, own, "norm2"), own, "widen").relu_(), own, "narrow")


_HALVES = {_plain_attention: ("norm1", "qkv", "project"), _plain_mlp: ("norm2", "widen", "narrow")}


def _plain_linear(x: Tensor, own: dict[str, Tensor], name: str) -> Tensor:
    return _plain_product(x, own[f"{name}.weight"]).add_(own[f"{name}.bias"].to(x.dtype))


def _plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in the dtype of x, a few rows of W at a time."""
    out = x.new_empty(*x.shape[:-1], len(weight))
    rows = max(1, CHUNK_ELEMENTS // weight.shape[1])
    for columns, part in zip(out.split(rows, -1), weight.split(rows), strict=True):
        columns.copy_(linear(x, part.to(x.dtype)))
    return out


def _embed(embedding: Tensor, positions: Tensor, tokens: Tensor, position: int, dtype: Any) -> Tensor:
    begin = position + POSITION_OFFSET
    return embedding[tokens].to(dtype) + positions[begin : begin + tokens.shape[1]].to(dtype)


def _norm(x: Tensor, of: dict[str, Tensor], name: str) -> Tensor:
    weight, bias = (of[f"{name}.{kind}"].to(x.dtype) for kind in ("weight", "bias"))
    return layer_norm(x, x.shape[-1:], weight, bias)
