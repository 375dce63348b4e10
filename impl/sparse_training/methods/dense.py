"""Dense attention: fused, and with its map in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from impl.sparse_training.attention_map import averaged_map, key_mask, probabilities, runs_on_sm80
from impl.sparse_training.methods.base import Attention

HIDDEN = -(2.0**15)  # times the scale, the exponential of which is 0; float16 holds it


class Flash(Attention):
    """FlashAttention-2, which never has the map: a watched call computes it beside, from its log-sum-exps.

    `padded` sequences need no mask, which the flash kernel would not take: see `_hide_padding`.
    """

    def __init__(self, padded: bool):
        super().__init__()
        self.padded = padded

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        head_dim = q.shape[3]
        scale, lse = head_dim**-0.5, None
        wide = _hide_padding(q, k, v, lengths) if self.padded else (q, k, v)
        if runs_on_sm80(q) and q.dtype in (torch.float16, torch.bfloat16):  # else torch might choose cuDNN
            out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*wide, scale=scale)
        else:
            out = functional.scaled_dot_product_attention(*wide, scale=scale)
        if self.watched:
            self.map = averaged_map(q, k, lengths, lse)
        return out[..., :head_dim]


def _hide_padding(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """8 columns more, of which one adds HIDDEN to a query's product with a key of padding: it then has no weight."""

    def widened(tensor: Tensor, column: Tensor) -> Tensor:
        return torch.cat([tensor, functional.pad(column, (0, 7)).expand(*tensor.shape[:3], 8)], 3)

    hidden = (~key_mask(lengths, k.shape[2])).mT.to(k.dtype)
    return widened(q, q.new_ones(1)), widened(k, hidden * HIDDEN), functional.pad(v, (0, 8))


class Materialised(Attention):
    """Matmul, softmax, matmul: the map is there in any case, its average costs a reduction."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        maps = probabilities(q, k, lengths)
        if self.watched:
            self.map = maps.detach().mean((0, 1), dtype=torch.float32)
        return maps @ v
