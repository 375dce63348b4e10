"""The kept blocks of an attention map as the lists that kernels walk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockPattern:
    """A pattern ready for use, in as many steps as wanted; `BlockPattern.of` makes it.

    block: queries and keys of a block. rows, columns: int32 [patterns, blocks + (blocks + 1) + blocks * blocks], lists
    of the key blocks of each query block (block CSR) and of the query blocks of each key block (CSC), laid out as
    kernels/block_lists.cuh says. patterns is 1 or the number of query heads.
    """

    block: int
    blocks: int
    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, kept: Tensor, block: int) -> BlockPattern:
        """From `kept`, bool [patterns, blocks, blocks], True where a block is kept.

        On a GPU nothing waits for the device: the lists have room for all blocks. Raises ValueError when `kept` is
        something else or `block` is not positive.
        """
        if kept.dtype != torch.bool or kept.dim() != 3 or kept.shape[1] != kept.shape[2]:
            raise ValueError(f"pattern must be bool [1 or heads, blocks, blocks], not {kept.dtype} {list(kept.shape)}")
        if block < 1:
            raise ValueError(f"block must be positive, not {block}")
        return cls(block, kept.shape[-1], _lists(kept), _lists(kept.mT))


def _lists(kept: Tensor) -> Tensor:
    counts = kept.sum(-1)
    order = counts.argsort(dim=-1, descending=True, stable=True)
    starts = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
    kept_first = kept.flatten(1).byte().argsort(dim=-1, descending=True, stable=True)
    return torch.cat([order, starts, kept_first % kept.shape[-1]], dim=-1).int()
