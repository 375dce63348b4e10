"""Tiled-CSL: the compressed weight that Flash-LLM streams (Xia et al., PVLDB 17(2), 2023).

W [m, k] is cut into tiles of 128 x 64, numbered row by row. A stored element is one 32-bit entry: the low
half holds its fp16 bits, the high half its place, a byte offset into the tile as the kernel lays it out in
shared memory (rows of 128 bytes, their 16-byte chunks permuted so that ldmatrix meets no bank conflict). A
tile's entries fill whole 16-byte vectors; `offsets` says at which vector each tile begins and the last ends.

Vectors are filled up with explicit zeros at free places of the tile.

Entries are ordered ahead of time: the 32 lanes of a warp load one vector each, then store their first
entries together, their second, and so on; each such store is dealt entries of different banks while banks
still have any.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm.formats.base import SparseMatrix, first_true

TILE_ROWS = 128
TILE_COLS = 64

_VECTOR = 4  # entries of 4 bytes in one 16-byte load
_TILE_SIZE = TILE_ROWS * TILE_COLS
_WARP = 32
_BANKS = 32
_SLOTS = _TILE_SIZE // _BANKS  # halves that each bank holds of a tile
_CHUNK = 8  # halves of 16 bytes, the unit that ldmatrix reads and the swizzle moves


class TiledCSL(SparseMatrix):
    """A sparse fp16 matrix in Tiled-CSL. data: entries, int32 [vectors, 4]; offsets in vectors of 16 bytes."""

    name = "tiled_csl"
    tile = (TILE_ROWS, TILE_COLS)
    words = _VECTOR
    units_of_tile = (0, _TILE_SIZE // _VECTOR)

    @classmethod
    def expand(cls, data: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
        tile, words = _entries_of(data, offsets, first, last)
        shared = torch.zeros((last - first) * _TILE_SIZE, dtype=torch.int16, device=data.device)
        shared[tile * _TILE_SIZE + (words >> 17)] = (words & 0xFFFF).to(torch.int16)
        elements = _place_of_element(data.device)
        return shared.view(last - first, _TILE_SIZE)[:, elements].view(torch.float16).view(-1, TILE_ROWS, TILE_COLS)

    @classmethod
    def _encode(cls, tiles: Tensor) -> tuple[Tensor, Tensor]:
        device = tiles.device
        place = torch.arange(_TILE_SIZE, device=device, dtype=torch.int32)
        # A bank holds the two halves of every 32nd word; list the places bank by bank.
        place = place.view(_SLOTS // 2, _BANKS, 2).transpose(0, 1).flatten()
        values = tiles.flatten(1)[:, _element_of_place(device)[place]]
        stored = values != 0
        values.masked_fill_(~stored, 0)  # the padding may fall on a -0.0
        stored |= _padding(stored)
        words = place << 17 | values.view(torch.int16).int() & 0xFFFF

        # Deal every bank's first entry, then every bank's second, and so on: entry `rank` of `bank` has its turn
        # among all (rank, bank) at rank * 32 + bank, and of these only the `dealt` exist.
        rank = stored.view(-1, _BANKS, _SLOTS).cumsum(2, dtype=torch.int16) - 1
        bank = torch.arange(_BANKS, device=device, dtype=torch.int16).unsqueeze(1)
        turn = (rank * _BANKS + bank).flatten()
        dealt = torch.arange(_SLOTS, device=device).unsqueeze(1) <= rank[:, :, -1].unsqueeze(1)
        position = dealt.flatten(1).cumsum(1, dtype=torch.int16) - 1
        counts = position[:, -1:] + 1
        begin = counts.cumsum(0, dtype=torch.int32) - counts
        target = (begin + _lane_order(position, counts // _VECTOR)).flatten()

        index = stored.flatten().nonzero().squeeze(1)
        first_turn = index & -_TILE_SIZE  # of its tile
        entries = torch.empty(len(index), dtype=torch.int32, device=device)
        entries[target[first_turn + turn[index]]] = words.flatten()[index]
        return entries.view(-1, _VECTOR), (counts // _VECTOR).flatten()

    def _check_tiles(self, first: int, last: int) -> None:
        """Every place lies in its tile and is taken once; what is not zero lies in the matrix."""
        tile, words = _entries_of(self.data, self.offsets, first, last)
        place = words >> 17
        self._refuse((words & 1 << 16 != 0) | (place < 0) | (place >= _TILE_SIZE), first, tile, "lies outside its tile")
        home = tile * _TILE_SIZE + place
        owner = torch.empty((last - first) * _TILE_SIZE, dtype=torch.int32, device=words.device)
        number = torch.arange(len(words), device=words.device, dtype=torch.int32)
        owner[home] = number
        self._refuse(owner[home] != number, first, tile, "has the place of another")
        m, k = self.shape
        tiles_k = self.grid(m, k)[1]
        element = _element_of_place(words.device).int()[place]
        tiles = torch.arange(first, last, device=words.device, dtype=torch.int32)
        rows_left, columns_left = m - tiles // tiles_k * TILE_ROWS, k - tiles % tiles_k * TILE_COLS
        outside = (element // TILE_COLS >= rows_left[tile]) | (element % TILE_COLS >= columns_left[tile])
        self._refuse(outside & (words & 0xFFFF != 0), first, tile, f"lies outside the matrix of shape {self.shape}")

    def _refuse(self, wrong: Tensor, first: int, tile: Tensor, what: str) -> None:
        """Raises ValueError when one of the entries from tile `first` on, which are of these tiles, is wrong."""
        if (place := first_true(wrong)) is not None:
            entry = int(self.offsets[first]) * _VECTOR + place
            raise self._fault(first + int(tile[place]), f"entry {entry} {what}")


def _entries_of(data: Tensor, offsets: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The tile, counted from `first`, int64, and the word, int32, of every entry of some tiles."""
    bounds = offsets[first : last + 1].long()
    words = data[int(bounds[0]) : int(bounds[-1])].flatten()
    counts = bounds.diff() * _VECTOR
    return torch.repeat_interleave(torch.arange(last - first, device=data.device), counts), words


def _place_of_element(device: torch.device) -> Tensor:
    """Where element row * 64 + column of a tile lies in shared memory, in halves: int64 [8192]."""
    element = torch.arange(_TILE_SIZE, device=device)
    row, column = element // TILE_COLS, element % TILE_COLS
    chunk = (column // _CHUNK) ^ (row % _CHUNK)
    return row * TILE_COLS + chunk * _CHUNK + column % _CHUNK


def _element_of_place(device: torch.device) -> Tensor:
    """The inverse of `_place_of_element`."""
    return torch.argsort(_place_of_element(device))


def _padding(stored: Tensor) -> Tensor:
    """The first free places of every tile that fill its last vector; bool like `stored` [tiles, places]."""
    free = ~stored
    missing = -stored.sum(1, keepdim=True) % _VECTOR
    return free & (free.cumsum(1, dtype=torch.int16) <= missing)


def _lane_order(position: Tensor, vectors: Tensor) -> Tensor:
    """Index in its tile of the entry that is stored to shared memory as number `position` [tiles, ...].

    A warp loads 32 of the tile's `vectors` [tiles, 1] (fewer at the end) and stores entry 0 of them all, then
    entry 1, and so on.
    """
    within = position & (_WARP * _VECTOR - 1)
    group = position - within
    lanes = (vectors - group // _VECTOR).clamp_(max=_WARP)
    entry = sum((within >= number * lanes).to(position.dtype) for number in range(1, _VECTOR))
    return group + (within - entry * lanes) * _VECTOR + entry
