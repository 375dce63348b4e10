"""Bitmap: a compressed weight that a warp decodes in registers, straight to the A fragments of mma.m16n8k16.

W [m, k] is cut into blocks of 32 rows x 128 columns, numbered row by row. A block is the share of one warp: each of
its 32 lanes holds the 128 elements that the two 16-row fragments of 8 steps of k give it, in the order in which the
multiplication wants them (step, fragment, register, half). A lane's column of 32-bit words is

  4 words of bits: bit i is the parity of the count of non-zeros among the lane's elements 0 to i, and so
    an element is not zero where its bit differs from the one before it;
  then its non-zeros, two to a word, the earlier one high.

The columns of the 32 lanes are stored side by side: a line is one word of each, 128 bytes, so that lanes which read
at their own paces never meet in a bank of shared memory. Shorter columns are filled up to the longest one.
`offsets` says at which line each block begins and the last one ends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm.formats.base import SparseMatrix, first_true

BLOCK_ROWS = 32
BLOCK_COLS = 128
LANES = 32
MASK_LINES = 4

_LANE_ELEMENTS = BLOCK_ROWS * BLOCK_COLS // LANES
_WORD_BITS = 32

# A block as [fragment, row half, row, step, column half, column pair, pair] against [lane, element]: PTX ISA, "Matrix
# Fragments for mma.m16n8k16". Lane = row * 4 + column pair; register = column half * 2 + row half.
_ROW_SPLIT = (2, 2, 8)
_COL_SPLIT = (8, 2, 4, 2)
_TO_LANES = (2, 5, 3, 0, 4, 1, 6)
_FROM_LANES = (3, 5, 0, 2, 4, 1, 6)
_LANE_SPLIT = (8, 4, 8, 2, 2, 2, 2)


class Bitmap(SparseMatrix):
    """A sparse fp16 matrix in the bitmap format. data: lines, int32 [lines, 32]; offsets in lines of 128 bytes."""

    name = "bitmap"
    tile = (BLOCK_ROWS, BLOCK_COLS)
    words = LANES
    units_of_tile = (MASK_LINES, MASK_LINES + _LANE_ELEMENTS // 2)

    @classmethod
    def expand(cls, data: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
        stored = _stored(data, offsets, first, last)
        element, half = _places(stored, stored.cumsum(2, dtype=torch.int16), offsets[first:last].long())
        lanes = torch.zeros(stored.shape, dtype=torch.int16, device=data.device)
        lanes.view(-1)[element] = data.view(torch.int16).view(-1)[half]  # as integers: NaN keep their bits
        blocks = lanes.view(-1, *_LANE_SPLIT).permute(0, *(axis + 1 for axis in _FROM_LANES))
        return blocks.reshape(-1, BLOCK_ROWS, BLOCK_COLS).view(torch.float16)

    @classmethod
    def _encode(cls, tiles: Tensor) -> tuple[Tensor, Tensor]:
        lanes = _to_lanes(tiles)
        stored = lanes != 0
        count = stored.cumsum(2, dtype=torch.int16)
        bit = torch.arange(_WORD_BITS, device=lanes.device, dtype=torch.int32)
        parity = (count & 1).int().view(-1, LANES, MASK_LINES, _WORD_BITS)
        masks = (parity << bit).sum(3, dtype=torch.int32)

        counts = MASK_LINES + (count[:, :, -1].amax(1) + 1) // 2
        begin = counts.cumsum(0) - counts
        lines = torch.zeros(int(counts.sum()), LANES, dtype=torch.int32, device=lanes.device)
        lines[begin.unsqueeze(1) + torch.arange(MASK_LINES, device=lanes.device)] = masks.transpose(1, 2)
        element, half = _places(stored, count, begin)
        lines.view(torch.int16).view(-1)[half] = lanes.view(torch.int16).flatten()[element]
        return lines, counts

    def _check_tiles(self, first: int, last: int) -> None:
        """Every block is as long as its longest lane, and what is stored lies in the matrix."""
        stored = _stored(self.data, self.offsets, first, last)
        longest = (stored.sum(2, dtype=torch.int32).amax(1) + 1) // 2
        counts = self.offsets[first : last + 1].diff()
        if (place := first_true(MASK_LINES + longest != counts)) is not None:
            needed = MASK_LINES + int(longest[place])
            raise self._fault(first + place, f"{int(counts[place])} lines, but its bits need {needed}")
        edge, outside = self._outside(first, last)
        outside = (stored[edge] & _to_lanes(outside)).flatten(1).any(1)
        if (place := first_true(outside)) is not None:
            raise self._fault(first + int(edge[place]), f"an element lies outside the matrix of shape {self.shape}")


def _stored(lines: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
    """Which elements of some blocks are not zero: bool [blocks, 32 lanes, 128]."""
    heads = offsets[first:last].long().unsqueeze(1) + torch.arange(MASK_LINES, device=lines.device)
    bit = torch.arange(_WORD_BITS, device=lines.device, dtype=torch.int32)
    parity = (lines[heads].transpose(1, 2).unsqueeze(3) >> bit & 1).bool().flatten(2)
    before = torch.nn.functional.pad(parity[:, :, :-1], (1, 0))
    return parity ^ before


def _places(stored: Tensor, count: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the stored elements, and where each lies among all halves: int64 [nnz] both.

    stored: bool [blocks, 32 lanes, 128]; count: its running sum along a lane; begin: int64 [blocks], the lines where
    the blocks begin.
    """
    element = stored.flatten().nonzero().squeeze(1)
    rank = count.flatten()[element] - 1
    lane = element // _LANE_ELEMENTS
    line = begin[lane // LANES] + MASK_LINES + rank // 2
    return element, (line * LANES + lane % LANES) * 2 + 1 - rank % 2


def _to_lanes(blocks: Tensor) -> Tensor:
    """Elements [blocks, 32, 128] as those of each lane: [blocks, 32 lanes, 128]."""
    split = blocks.reshape(-1, *_ROW_SPLIT, *_COL_SPLIT).permute(0, *(axis + 1 for axis in _TO_LANES))
    return split.reshape(-1, LANES, _LANE_ELEMENTS)
