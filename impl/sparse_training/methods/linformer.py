"""Linformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from impl.sparse_training.attention_map import key_mask
from impl.sparse_training.methods.base import Attention


class Linformer(Attention):
    """Keys and values projected along the sequence to `rank` rows, one projection for both (Wang et al. 2020)."""

    def __init__(self, seqlen: int, rank: int = 256):
        super().__init__()
        self.project = nn.Parameter(torch.randn(rank, seqlen) / math.sqrt(seqlen))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        seen = key_mask(lengths, k.shape[2]).mT
        k, v = (self.project.to(t.dtype) @ t.masked_fill(~seen, 0) for t in (k, v))
        return functional.scaled_dot_product_attention(q, k, v)
