"""Dense attention: fused, and with its map in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from impl.sparse_training.attention_map import averaged_map, key_mask, probabilities
from impl.sparse_training.methods.base import Attention


class Flash(Attention):
    """torch's fused attention, which never has the map: a watched call computes it beside."""

    def __init__(self, padded: bool):
        super().__init__()
        self.padded = padded

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        if self.watched:
            self.map = averaged_map(q, k, lengths)
        mask = key_mask(lengths, k.shape[2]) if self.padded else None  # the flash kernel takes no mask
        return functional.scaled_dot_product_attention(q, k, v, mask)


class Materialised(Attention):
    """Matmul, softmax, matmul: the map is there in any case, its average costs a reduction."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        maps = probabilities(q, k, lengths)
        if self.watched:
            self.map = maps.detach().mean((0, 1), dtype=torch.float32)
        return maps @ v
