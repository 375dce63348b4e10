"""A Transformer, encoder or decoder, whose attention is exchanged, and one step of its training in mixed precision.

Pre-norm blocks, GELU, learnt positions, an output layer tied to the token embedding, no dropout: BERT's and GPT-2's
sizes in plain PyTorch. Imports torch; planning must not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear
from torch.utils.checkpoint import checkpoint

from harness.ops.calls import Forward

if TYPE_CHECKING:
    from harness.ops.training_step import Shape

LOGIT_ROWS = 1024  # tokens whose logits are held at once in float64
LOSS_SCALE = 2.0**16  # at first; what GradScaler begins with


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is [batch, seqlen, hidden]."""

    def __init__(self, shape: Shape, attention: Forward | None):
        super().__init__()
        hidden = shape.hidden
        self.num_heads, self.attention = shape.num_heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)  # a bias of k has no gradient that could be checked
        self.project = nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.project(self.attend(self.norm1(x)))
        return x + self.narrow(gelu(self.widen(self.norm2(x)), approximate="tanh"))

    def attend(self, x: Tensor) -> Tensor:
        """Heads are views [batch, heads, seqlen, head_dim] of one product; the attention computes in their dtype."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3)
        with torch.autocast(x.device.type, enabled=False):
            out = self.attention(*heads.unbind(2))
        return out.transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    """Token losses of a language model.

    With `recompute` only the layers' inputs are kept, and in float64 the logits of a few tokens at a time: the same
    roundings in less memory, for references that must fit beside the contenders.
    """

    def __init__(self, shape: Shape, seqlen: int, attention: Forward | None, recompute: bool = False):
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Parameter(torch.empty(seqlen, shape.hidden))
        self.blocks = nn.ModuleList(Block(shape, attention) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)

    def forward(self, tokens: Tensor, targets: Tensor, predicted: Tensor | None = None) -> Tensor:
        """Cross-entropies [targets] in float32 or wider. tokens [batch, seqlen]; targets are the tokens to be
        predicted, at the flat places `predicted`, or at all of them."""
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = self._call(block, x)
        x = self.norm(x).flatten(0, 1)
        x = x if predicted is None else x[predicted]
        rows = LOGIT_ROWS if self.recompute and x.dtype == torch.float64 else len(x)
        parts = zip(x.split(rows), targets.split(rows), strict=True)
        return torch.cat([self._call(self._losses, *part) for part in parts])

    def _losses(self, x: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(linear(x, self.tokens.weight), targets, reduction="none")

    def _call(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        return checkpoint(function, *arguments, use_reentrant=False) if self.recompute else function(*arguments)


def draw_weights(shape: Shape, seqlen: int, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Initial weights by name, float32: matrices normal with a variance of 1 / columns, so that the scores of the
    attention vary by about 1; gains 1, biases 0. `options` are torch.randn's."""
    with torch.device("meta"):
        model = Transformer(shape, seqlen, None)
    weights = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            weights[name] = torch.randn(parameter.shape, **options).mul_(parameter.shape[-1] ** -0.5)
        else:
            weights[name] = torch.full(parameter.shape, float(name.endswith("weight")), device=options["device"])
    return weights


def with_weights(
    shape: Shape, weights: Mapping[str, Tensor], dtype: torch.dtype, attention: Forward, recompute: bool = False
) -> Transformer:
    """A model that has a copy of `weights` in `dtype`."""
    with torch.device("meta"):
        model = Transformer(shape, len(weights["positions"]), attention, recompute)
    copies = {name: weight.to(dtype, copy=True) for name, weight in weights.items()}
    model.load_state_dict(copies, assign=True)
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By name, as they are."""
    return {key: part for name, p in model.named_parameters() for key, part in _parts(name, p.grad)}


def gradient_names(shape: Shape, seqlen: int) -> list[str]:
    """The names that `gradients` gives."""
    with torch.device("meta"):
        model = Transformer(shape, seqlen, None)
    return [key for name, parameter in model.named_parameters() for key, _ in _parts(name, parameter)]


def _parts(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """A weight's gradient under its name; those of the projections to queries, keys and values, which differ in size,
    apart."""
    if name.endswith("qkv.weight"):
        return [(f"d {name}.{part}", of_part) for part, of_part in zip("qkv", weight.chunk(3), strict=True)]
    return [(f"d {name}", weight)]


@dataclass
class Training:
    """Mixed precision as PyTorch's users have it: float32 weights, autocast to `dtype`, scaled loss, fused AdamW.

    `scale_steps` is after how many steps without an overflow the loss is scaled up.
    """

    model: nn.Module  # which returns losses
    dtype: torch.dtype
    learning_rate: float
    scale_steps: int = 2000

    def __post_init__(self) -> None:
        device = next(self.model.parameters()).device.type
        options = {"lr": self.learning_rate, "fused": True, "capturable": device == "cuda"}
        self._optimizer = torch.optim.AdamW(self.model.parameters(), **options)
        self._scaler = torch.amp.GradScaler(
            device, LOSS_SCALE, growth_interval=self.scale_steps, enabled=self.dtype == torch.float16
        )

    def step(self, *batch: Tensor | None) -> dict[str, Tensor]:
        """One step; its losses and gradients, which the step does not keep."""
        losses = mixed_losses(self.model, self.dtype, *batch)
        self._scaler.scale(losses.mean()).backward()
        self._scaler.step(self._optimizer)  # which also unscales the gradients
        self._scaler.update()
        outputs = {"losses": losses.detach(), **gradients(self.model)}
        self._optimizer.zero_grad()
        return outputs


def mixed_losses(model: nn.Module, dtype: torch.dtype, *batch: Tensor | None) -> Tensor:
    """The losses of `batch`, under autocast where the weights are not of `dtype`."""
    weights = next(model.parameters())
    with torch.autocast(weights.device.type, dtype, enabled=weights.dtype != dtype):
        return model(*batch)


def plain_step(model: nn.Module, dtype: torch.dtype, *batch: Tensor | None) -> dict[str, Tensor]:
    """What `Training.step` gives, without an optimizer."""
    losses = mixed_losses(model, dtype, *batch)
    (losses.mean() * LOSS_SCALE).backward()
    return {"losses": losses.detach(), **{name: g / LOSS_SCALE for name, g in gradients(model).items()}}


class PlainAttention(torch.autograd.Function):
    """Attention by `plain(tensors) -> outputs`, named as the op attention names them, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plain: Callable[..., dict[str, Tensor]]) -> Tensor:
        ctx.plain = plain
        ctx.save_for_backward(q, k, v)
        return plain({"q": q, "k": k, "v": v})["out"]

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        found = ctx.plain({"q": q, "k": k, "v": v, "dout": dout})
        return found["dq"], found["dk"], found["dv"], None
