"""Performer."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.sparse_training.attention_map import key_mask
from impl.sparse_training.methods.base import Attention, in_float32


class Performer(Attention):
    """FAVOR+: the softmax kernel by positive orthogonal random features (Choromanski et al. 2021).

    A feature of x is exp(w.x - |x|^2 / 2). The w are drawn once; the authors draw them anew at intervals.
    """

    features: Tensor

    def __init__(self, head_dim: int, features: int = 256):
        super().__init__()
        self.register_buffer("features", _orthogonal_gaussians(features, head_dim))

    @in_float32
    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        q, k = self._logarithms(q), self._logarithms(k).masked_fill(~key_mask(lengths, k.shape[2]).mT, -torch.inf)
        # What is subtracted cancels: of each query, and of all keys of a head, which must share it.
        highest = k.amax((2, 3), keepdim=True).detach().clamp(min=torch.finfo(k.dtype).min)
        q, k = (q - q.amax(3, keepdim=True).detach()).exp(), (k - highest).exp()
        total = q @ k.sum(2)[..., None]
        return q @ (k.mT @ v) / total.clamp(min=torch.finfo(total.dtype).tiny)

    def _logarithms(self, x: Tensor) -> Tensor:
        x = x * x.shape[3] ** -0.25
        return x @ self.features.T - x.square().sum(3, keepdim=True) / 2


def _orthogonal_gaussians(count: int, size: int) -> Tensor:
    """[count, size], orthogonal within each `size` rows, with the lengths of Gaussian vectors."""
    squares = torch.linalg.qr(torch.randn(-(-count // size), size, size)).Q
    return squares.flatten(0, 1)[:count] * torch.randn(count, size).norm(dim=1, keepdim=True)
