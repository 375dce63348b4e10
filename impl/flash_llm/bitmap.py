"""Bitmap: a compressed weight that a warp decodes in registers, straight to the A fragments of mma.m16n8k16.

W [m, k] is cut into blocks of 32 rows x 256 columns, numbered row by row. A block is the share of one warp: each of
its 32 lanes holds the 256 elements that the two 16-row fragments of 16 steps of k give it, in the order in which the
multiplication wants them (step, fragment, register, half). A lane's column of 32-bit words is

  8 words of bits: bit i is the parity of the count of non-zeros among the lane's elements 0 to i, and so
    an element is not zero where its bit differs from the one before it;
  then its non-zeros, two to a word, the earlier one low.

The columns of the 32 lanes are stored side by side: a line is one word of each, 128 bytes, so that lanes which read
at their own paces never meet in a bank of shared memory. Shorter columns are filled up to the longest one.
`offsets` says at which line each block begins and the last one ends.

Stored is what compares unequal to zero, NaN included: every value comes back bit for bit, except that -0.0 comes back
as +0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_ROWS = 32
BLOCK_COLS = 256
LANES = 32
MASK_LINES = 8

_LANE_ELEMENTS = BLOCK_ROWS * BLOCK_COLS // LANES
_WORD_BITS = 32
_MAX_LINES = MASK_LINES + _LANE_ELEMENTS // 2
_STRIP_ELEMENTS = 1 << 22  # elements converted at once; bounds the conversion's temporaries

# A block as [fragment, row half, row, step, column half, column pair, pair] against [lane, element]: PTX ISA, "Matrix
# Fragments for mma.m16n8k16". Lane = row * 4 + column pair; register = column half * 2 + row half.
_ROW_SPLIT = (2, 2, 8)
_COL_SPLIT = (16, 2, 4, 2)
_TO_LANES = (2, 5, 3, 0, 4, 1, 6)
_FROM_LANES = (3, 5, 0, 2, 4, 1, 6)
_LANE_SPLIT = (8, 4, 16, 2, 2, 2, 2)


@dataclass(frozen=True)
class Bitmap:
    """A sparse fp16 matrix in the bitmap format; checked whole when it is made.

    lines: int32 [lines, 32], offsets: int32 [blocks + 1] in lines, shape: (m, k); densest: the most lines of a block.
    Raises TypeError for wrong dtypes, ValueError for anything that does not describe a matrix of this shape.
    """

    lines: Tensor
    offsets: Tensor
    shape: tuple[int, int]
    densest: int

    def __post_init__(self) -> None:
        _check_structure(self)
        for first, last in _block_ranges(self.shape):
            _check_blocks(self, first, last)

    @classmethod
    def from_dense(cls, w: Tensor) -> Bitmap:
        """Convert w [m, k] float16, of any strides, on its own device, a strip of rows at a time."""
        if w.dtype != torch.float16 or w.dim() != 2:
            raise TypeError(f"w must be a 2-D float16 tensor, not {w.dim()}-D {w.dtype}")
        m, k = w.shape
        if min(m, k) < 1:
            raise ValueError(f"a matrix of shape {(m, k)} has no elements")
        rows = max(1, _STRIP_ELEMENTS // (BLOCK_ROWS * k)) * BLOCK_ROWS
        parts = [_encode(_cut_into_lanes(w[begin : begin + rows])) for begin in range(0, m, rows)]
        counts = torch.cat([counts for _, counts in parts])
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=w.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        if offsets[-1] > torch.iinfo(torch.int32).max:
            raise ValueError(f"{int(offsets[-1])} lines of 128 bytes do not fit 32-bit offsets; split the matrix")
        return cls(torch.cat([lines for lines, _ in parts]), offsets.int(), (m, k), int(counts.max()))

    def to_dense(self) -> Tensor:
        """The matrix [m, k] float16."""
        m, k = self.shape
        dense = torch.empty(m, k, dtype=torch.float16, device=self.device)
        blocks_k = block_grid(m, k)[1]
        for row, begin in enumerate(range(0, m, BLOCK_ROWS)):
            strip = expand_blocks(self.lines, self.offsets, row * blocks_k, (row + 1) * blocks_k)
            strip = strip.transpose(0, 1).reshape(BLOCK_ROWS, blocks_k * BLOCK_COLS)
            dense[begin : begin + BLOCK_ROWS] = strip[: m - begin, :k]
        return dense

    def to(self, device: torch.device | str) -> Bitmap:
        """The same matrix on `device`."""
        return Bitmap(self.lines.to(device), self.offsets.to(device), self.shape, self.densest)

    @property
    def device(self) -> torch.device:
        return self.lines.device

    @property
    def nbytes(self) -> int:
        """Bytes that one multiplication reads of the matrix: lines, padding included, and offsets."""
        return self.lines.nbytes + self.offsets.nbytes


def block_grid(m: int, k: int) -> tuple[int, int]:
    """Blocks along m and along k."""
    return -(-m // BLOCK_ROWS), -(-k // BLOCK_COLS)


def expand_blocks(lines: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
    """Blocks `first` to `last` (excluded), as [blocks, 32, 256] float16 with zeros where nothing is stored."""
    stored = _stored(lines, offsets, first, last)
    element, half = _places(stored, offsets[first:last].long())
    lanes = torch.zeros(stored.shape, dtype=torch.float16, device=lines.device)
    lanes.view(-1)[element] = lines.view(torch.float16).view(-1)[half]
    blocks = lanes.view(-1, *_LANE_SPLIT).permute(0, *(axis + 1 for axis in _FROM_LANES))
    return blocks.reshape(-1, BLOCK_ROWS, BLOCK_COLS)


def _stored(lines: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
    """Which elements of some blocks are not zero: bool [blocks, 32 lanes, 256]."""
    heads = offsets[first:last].long().unsqueeze(1) + torch.arange(MASK_LINES, device=lines.device)
    bit = torch.arange(_WORD_BITS, device=lines.device, dtype=torch.int32)
    parity = (lines[heads].transpose(1, 2).unsqueeze(3) >> bit & 1).bool().flatten(2)
    before = torch.nn.functional.pad(parity[:, :, :-1], (1, 0))
    return parity ^ before


def _places(stored: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the stored elements, and where each lies among all halves: int64 [nnz] both.

    stored: bool [blocks, 32 lanes, 256]; begin: int64 [blocks], the lines where the blocks begin.
    """
    element = stored.flatten().nonzero().squeeze(1)
    rank = stored.cumsum(2, dtype=torch.int16).flatten()[element] - 1
    lane = element // _LANE_ELEMENTS
    line = begin[lane // LANES] + MASK_LINES + rank // 2
    return element, (line * LANES + lane % LANES) * 2 + rank % 2


def _cut_into_lanes(strip: Tensor) -> Tensor:
    """Rows [r, k] as the elements of each lane of whole blocks [blocks, 32, 256], filled up with zeros."""
    rows, columns = strip.shape
    blocks_m, blocks_k = block_grid(rows, columns)
    padded = torch.nn.functional.pad(strip, (0, blocks_k * BLOCK_COLS - columns, 0, blocks_m * BLOCK_ROWS - rows))
    blocks = padded.view(blocks_m, BLOCK_ROWS, blocks_k, BLOCK_COLS).transpose(1, 2)
    split = blocks.reshape(-1, *_ROW_SPLIT, *_COL_SPLIT).permute(0, *(axis + 1 for axis in _TO_LANES))
    return split.reshape(-1, LANES, _LANE_ELEMENTS)


def _encode(lanes: Tensor) -> tuple[Tensor, Tensor]:
    """Lines int32 [lines, 32], block after block, and their count per block, of elements [blocks, 32, 256]."""
    device = lanes.device
    stored = lanes != 0
    count = stored.cumsum(2, dtype=torch.int32)
    bit = torch.arange(_WORD_BITS, device=device, dtype=torch.int32)
    parity = (count & 1).view(-1, LANES, MASK_LINES, _WORD_BITS)
    masks = (parity << bit).sum(3, dtype=torch.int32)

    counts = MASK_LINES + (count[:, :, -1].amax(1) + 1) // 2
    begin = counts.cumsum(0) - counts
    lines = torch.zeros(int(counts.sum()), LANES, dtype=torch.int32, device=device)
    lines[begin.unsqueeze(1) + torch.arange(MASK_LINES, device=device)] = masks.transpose(1, 2)
    element, half = _places(stored, begin)
    lines.view(torch.float16).view(-1)[half] = lanes.flatten()[element]
    return lines, counts


def _block_ranges(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """All blocks, some at a time."""
    blocks_m, blocks_k = block_grid(*shape)
    step = _STRIP_ELEMENTS // (BLOCK_ROWS * BLOCK_COLS)
    for first in range(0, blocks_m * blocks_k, step):
        yield first, min(first + step, blocks_m * blocks_k)


def _check_structure(matrix: Bitmap) -> None:
    lines, offsets = matrix.lines, matrix.offsets
    for name, array, dim in (("lines", lines, 2), ("offsets", offsets, 1)):
        if array.dtype != torch.int32 or array.dim() != dim or not array.is_contiguous():
            raise TypeError(f"{name} must be a contiguous {dim}-D int32 tensor, not {array.dim()}-D {array.dtype}")
    if lines.device != offsets.device:
        raise ValueError(f"lines on {lines.device} but offsets on {offsets.device}")
    if lines.shape[1] != LANES or lines.data_ptr() % 16:
        raise ValueError(f"lines of {lines.shape[1]} words: they must have {LANES}, and be aligned to 16 bytes")
    if min(matrix.shape) < 1:
        raise ValueError(f"a matrix of shape {tuple(matrix.shape)} has no elements")
    blocks_m, blocks_k = block_grid(*matrix.shape)
    if tuple(offsets.shape) != (blocks_m * blocks_k + 1,):
        raise ValueError(f"offsets has shape {tuple(offsets.shape)}; this matrix needs ({blocks_m * blocks_k + 1},)")
    counts = offsets.diff()
    if offsets[0] != 0 or offsets[-1] != len(lines) or counts.min() < MASK_LINES or counts.max() > _MAX_LINES:
        raise ValueError(f"offsets must rise from 0 to {len(lines)}, by {MASK_LINES} to {_MAX_LINES} a block")
    if counts.max() != matrix.densest:
        raise ValueError(f"the densest block has {int(counts.max())} lines, not {matrix.densest}")


def _check_blocks(matrix: Bitmap, first: int, last: int) -> None:
    """Every block is as long as its longest lane, and what is stored lies in the matrix."""
    stored = _stored(matrix.lines, matrix.offsets, first, last)
    longest = (stored.sum(2, dtype=torch.int32).amax(1) + 1) // 2
    if (MASK_LINES + longest != matrix.offsets[first : last + 1].diff()).any():
        raise ValueError("a block has more or fewer lines than its bits say")
    m, k = matrix.shape
    blocks_k = block_grid(m, k)[1]
    block = torch.arange(first, last, device=matrix.device)
    row = block // blocks_k * BLOCK_ROWS
    column = block % blocks_k * BLOCK_COLS
    edge = torch.nonzero((row + BLOCK_ROWS > m) | (column + BLOCK_COLS > k)).squeeze(1)
    inside = (row[edge, None] + torch.arange(BLOCK_ROWS, device=matrix.device) < m).unsqueeze(2) & (
        column[edge, None] + torch.arange(BLOCK_COLS, device=matrix.device) < k
    ).unsqueeze(1)
    lanes = inside.reshape(-1, *_ROW_SPLIT, *_COL_SPLIT).permute(0, *(axis + 1 for axis in _TO_LANES))
    if (stored[edge] & ~lanes.reshape(-1, LANES, _LANE_ELEMENTS)).any():
        raise ValueError(f"an element lies outside the matrix of shape {tuple(matrix.shape)}")
