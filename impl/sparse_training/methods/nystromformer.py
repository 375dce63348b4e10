"""Nystromformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from impl.sparse_training.attention_map import key_mask
from impl.sparse_training.methods.base import Attention, in_float32

INVERSE_STEPS = 6
SKIP = 33  # tokens of the convolution over the values


class Nystromformer(Attention):
    """softmax(q k~) softmax(q~ k~)^+ softmax(q~ k) v, beside a depthwise convolution of v (Xiong et al. 2021).

    The landmarks q~, k~ are the means of `landmarks` equal segments of each sequence without its padding; one that is
    shorter than that has as many as it has tokens.
    """

    def __init__(self, heads: int, landmarks: int = 64):
        super().__init__()
        self.landmarks = landmarks
        self.skip = nn.Conv2d(heads, heads, (SKIP, 1), padding=(SKIP // 2, 0), groups=heads, bias=False)

    @in_float32
    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        seqlen, scale = q.shape[2], q.shape[3] ** -0.5
        seen = key_mask(lengths, seqlen)
        segment = torch.arange(seqlen, device=q.device) * lengths.clamp(max=self.landmarks)[:, None]
        segment = segment.div(lengths.clamp(min=1)[:, None], rounding_mode="floor")
        member = (segment[:, None] == torch.arange(self.landmarks, device=q.device)[:, None])[:, None] & seen
        count = member.sum(3, keepdim=True)  # [batch, 1, landmarks, 1]
        mean = member.to(q.dtype) / count.clamp(min=1)
        q_mean, k_mean, used = mean @ q, mean @ k, count > 0

        def weights(queries: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
            return (queries @ keys.mT * scale).masked_fill(~visible, torch.finfo(q.dtype).min).softmax(3)

        to_landmarks = weights(q, k_mean, used.mT)
        core = (weights(q_mean, k_mean, used.mT) * used).masked_fill(~used.mT, 0)
        from_landmarks = (weights(q_mean, k, seen) * used).masked_fill(~seen, 0)
        return to_landmarks @ (pseudo_inverse(core) @ (from_landmarks @ v)) + self.skip(v.masked_fill(~seen.mT, 0))


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """The paper's iteration, of third order, from A^T / (|A|_1 |A|_inf)."""
    sums = matrix.abs().sum(-2).amax(-1) * matrix.abs().sum(-1).amax(-1)
    inverse = matrix.mT / sums.clamp(min=torch.finfo(matrix.dtype).tiny)[..., None, None]
    one = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    for _ in range(INVERSE_STEPS):
        product = matrix @ inverse
        inverse = inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
    return inverse
