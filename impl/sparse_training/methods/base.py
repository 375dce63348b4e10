"""What methods share: the attention module, and its precision."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """What the layers of a method share. `map` is the averaged map of the last call that was `watched`."""

    capturable = True  # by a CUDA graph, with its backward: no call waits for the GPU, and equal ones are equal

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.map: Tensor | None = None


def in_float32(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`forward` of a module with q, k, v in float32 or wider, whatever autocast says; its output in v's dtype again."""

    @functools.wraps(forward)
    def wide(self: nn.Module, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        dtype = torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            return forward(self, q.to(dtype), k.to(dtype), v.to(dtype), lengths).to(v.dtype)

    return wide
