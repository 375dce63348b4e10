"""The sparse-training paper's encoder as the op sparse_training_step has it. Imports torch; planning must not import
this module."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.ops.base import Tensors
from harness.ops.transformer import PlainAttention
from impl.sparse_training.model import Encoder


class EncoderLosses(Encoder):
    """Losses [batch] instead of logits, and no dropout."""

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def forward(self, tokens: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(super().forward(tokens, lengths), labels, reduction="none")


class PlainLayer(nn.Module):
    """Attention by `plain(tensors) -> outputs`, as the op attention names them, of sequences of full length."""

    def __init__(self, plain: Callable[[Tensors], dict[str, Tensor]]):
        super().__init__()
        self.plain = plain

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            return PlainAttention.apply(q, k, v, self.plain)
