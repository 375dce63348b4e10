"""The attention map as the paper's monitor has it: averaged over batch and heads, whole."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from impl.cuda.steps import Launch
from impl.sparse_training.block_pattern import BlockPattern
from impl.sparse_training.kernels import attention, attention_map

SCORES_AT_ONCE = 2**28  # 1 GiB in float32
_BLOCK = 128  # of the forward that finds the log-sum-exps


def key_mask(lengths: Tensor, seqlen: int) -> Tensor:
    """bool [batch, 1, 1, seqlen], False at padding; an empty sequence sees its first key, as a softmax must see one."""
    return (torch.arange(seqlen, device=lengths.device) < lengths.clamp(min=1)[:, None])[:, None, None]


def probabilities(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    """The attention map of each head, [batch, heads, seqlen, seqlen]."""
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~key_mask(lengths, k.shape[2]), -math.inf)
    return scores.softmax(-1)


def runs_on_sm80(tensor: Tensor) -> bool:
    """Whether it is on a GPU of compute capability 8.0 or newer."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 0)


@torch.no_grad()
def averaged_map(q: Tensor, k: Tensor, lengths: Tensor, lse: Tensor | None = None) -> Tensor:
    """Mean of `probabilities` over batch and heads, float32 [seqlen, seqlen], exact to its rounding.

    q, k: [batch, heads, seqlen, head_dim]; lengths: integers [batch]; lse: the log-sum-exps of a forward, where there
    are any, float32 [batch, heads, seqlen]. By kernels on a GPU of compute capability 8.0 or newer, for half precisions
    in rows of whole 16 bytes; otherwise by PyTorch, a part of the batch at a time.
    """
    if runs_on_sm80(q) and attention_map.takes(q, k):
        from impl.cuda.launch import launch

        return by_kernels(q, k, lengths, launch, lse)
    batch, heads, seqlen, _ = q.shape
    at_once = max(1, SCORES_AT_ONCE // (heads * seqlen * seqlen))
    total = torch.zeros(seqlen, seqlen, device=q.device)
    for part in zip(q.split(at_once), k.split(at_once), lengths.split(at_once), strict=True):
        total += probabilities(*part).sum((0, 1), dtype=torch.float32)
    return total / (batch * heads)


def by_kernels(q: Tensor, k: Tensor, lengths: Tensor, launch: Launch, lse: Tensor | None = None) -> Tensor:
    """`averaged_map`. The log-sum-exps that are not given are a pass of their own: the block-sparse forward's, with all
    blocks."""
    lengths = lengths.clamp(min=1).int()
    if lse is None:
        pattern = _all_blocks(-(-q.shape[2] // _BLOCK), q.device)
        options = {"block": _BLOCK, "causal": False, "softmax": "renormalised", "launch": launch}
        _, lse = attention.forward(q, k, k, pattern.rows, lengths, **options)
    return attention_map.averaged_map(q, k, lse, lengths, launch=launch)


@functools.lru_cache(maxsize=8)
def _all_blocks(blocks: int, device: torch.device) -> BlockPattern:
    return BlockPattern.of(torch.ones(1, blocks, blocks, dtype=torch.bool, device=device), _BLOCK)
