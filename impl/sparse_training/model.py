"""The encoder of SAT's experiments: pre-LN Transformer layers, mean pooling, a classifier. Attention is passed in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from impl.sparse_training.recipes import HEADS, HIDDEN, WIDTH

DROPOUT = 0.1


class Layer(nn.Module):
    def __init__(self, attention: nn.Module):
        super().__init__()
        self.before_attention, self.before_hidden = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = attention
        self.hidden = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        batch, seqlen, _ = x.shape
        qkv = self.project_in(self.before_attention(x)).view(batch, seqlen, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = self.attention(q, k, v, lengths).transpose(1, 2).reshape(batch, seqlen, WIDTH)
        x = x + self.dropout(self.project_out(attended))
        return x + self.dropout(self.hidden(self.before_hidden(x)))


class Encoder(nn.Module):
    """Classifies token sequences, or pairs of them from the features of both.

    attentions: one module per layer, called with q, k, v [batch, heads, seqlen, head_dim] and lengths
    int [batch], past which keys are padding; it returns q's shape.
    """

    def __init__(
        self, vocabulary: int, seqlen: int, classes: int, attentions: Sequence[nn.Module], pairs: bool = False
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(seqlen, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(map(Layer, attentions))
        self.norm = nn.LayerNorm(WIDTH)
        self.classifier = nn.Sequential(
            nn.Linear(4 * WIDTH if pairs else WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
        )

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits [batch, classes]. tokens: int64 [batch, seqlen], or [batch, 2, seqlen] for pairs; lengths: of each."""
        if tokens.dim() == 2:
            return self.classifier(self.features(tokens, lengths))
        both = self.features(tokens.flatten(0, 1), lengths.flatten()).unflatten(0, tokens.shape[:2])
        first, second = both.unbind(1)
        return self.classifier(torch.cat([first, second, first * second, first - second], -1))

    def features(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Mean over the tokens that are no padding, [batch, WIDTH]."""
        valid = torch.arange(tokens.shape[-1], device=tokens.device) < lengths[:, None]
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]])
        for layer in self.layers:
            x = layer(x, lengths)
        return (self.norm(x) * valid[..., None]).sum(1) / lengths.clamp(min=1)[:, None]
