"""Reformer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from impl.sparse_training.methods.base import Attention, in_float32


class Reformer(Attention):
    """Attention within buckets of a locality-sensitive hash, sorted and cut into chunks (Kitaev et al. 2020).

    A query is its own key, normalised; it sees the keys of its bucket in its chunk and the one before, itself only
    where there is no other. Rounds are weighed by their denominators; a key that several of them find counts in each.
    The hashes are drawn at each call. Padding has a bucket of its own, sorted last.
    """

    def __init__(self, chunk: int = 64, rounds: int = 2):
        super().__init__()
        self.chunk, self.rounds = chunk, rounds

    @in_float32
    def forward(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        seqlen, head_dim = q.shape[2:]
        padding = -seqlen % self.chunk
        q, v = (functional.pad(t, (0, 0, 0, padding)) for t in (q, v))
        place = torch.arange(seqlen + padding, device=q.device)
        halves = max(1, len(place) // self.chunk // 2)
        rotation = torch.randn(self.rounds, head_dim, halves, device=q.device)
        outs, logs = zip(*(self._round(q, v, lengths, place, r) for r in rotation), strict=True)
        share = torch.stack(logs).softmax(0)[..., None]
        return (torch.stack(outs) * share).sum(0)[:, :, :seqlen]

    def _round(self, q: Tensor, v: Tensor, lengths: Tensor, place: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
        """Output, and the logarithm of its denominator, of each query."""
        turned = q @ rotation
        bucket = torch.cat([turned, -turned], -1).argmax(-1)
        bucket = bucket.masked_fill((place >= lengths[:, None])[:, None], 2 * turned.shape[-1])
        order = bucket.argsort(dim=-1, stable=True)

        def chunks(values: Tensor) -> Tensor:
            """In the order of the buckets, [batch, heads, chunks, chunk, ...]."""
            index = order.view(*order.shape, *[1] * (values.dim() - 3)).expand(values.shape)
            return values.gather(2, index).unflatten(2, (-1, self.chunk))

        def with_previous(values: Tensor) -> Tensor:
            return torch.cat([values.roll(1, 2), values], 3)

        queries, buckets, places = chunks(q), chunks(bucket), order.unflatten(2, (-1, self.chunk))
        keys = functional.normalize(with_previous(queries), dim=-1)
        scores = queries @ keys.mT * q.shape[-1] ** -0.5
        hidden = buckets[..., None] != with_previous(buckets)[..., None, :]
        itself = places[..., None] == with_previous(places)[..., None, :]
        scores = scores.masked_fill(itself, -1e5).masked_fill(hidden, -torch.inf)
        log = scores.logsumexp(-1)
        out = (scores - log[..., None]).exp() @ with_previous(chunks(v))
        back = order.argsort(dim=-1)
        unsorted = out.flatten(2, 3).gather(2, back[..., None].expand(v.shape))
        return unsorted, log.flatten(2).gather(2, back)
