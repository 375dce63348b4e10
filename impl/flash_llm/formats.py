"""Tiled-CSL: the compressed weight that Flash-LLM streams (Xia et al., PVLDB 17(2), 2023).

W [m, k] is cut into tiles of 128 x 64, numbered row by row. A stored element is one 32-bit entry: the low
half holds its fp16 bits, the high half its place, a byte offset into the tile as the kernel lays it out in
shared memory (rows of 128 bytes, their 16-byte chunks permuted so that ldmatrix meets no bank conflict). A
tile's entries fill whole 16-byte vectors; `offsets` says at which vector each tile begins and the last ends.

Stored is what compares unequal to zero, NaN included: every value and the whole of a dense tile come back bit
for bit, except that -0.0 comes back as +0.0 (weights pruned by multiplication are full of -0.0). Vectors are
filled up with explicit zeros at free places of the tile.

Entries are ordered ahead of time: the 32 lanes of a warp load one vector each, then store their first
entries together, their second, and so on; each such store is dealt entries of different banks while banks
still have any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ROWS = 128
TILE_COLS = 64
VECTOR = 4  # entries of 4 bytes in one 16-byte load

_TILE_SIZE = TILE_ROWS * TILE_COLS
_WARP = 32
_BANKS = 32
_SLOTS = _TILE_SIZE // _BANKS  # halves that each bank holds of a tile
_CHUNK = 8  # halves of 16 bytes, the unit that ldmatrix reads and the swizzle moves
_STRIP_ELEMENTS = 1 << 22  # elements converted at once; bounds the conversion's temporaries

_Strip = Callable[[int, int], Tensor]  # dense rows from one to another (excluded), float16


@dataclass(frozen=True)
class TiledCSL:
    """A sparse fp16 matrix in Tiled-CSL; checked whole when it is made.

    entries: int32 [4 * vectors], offsets: int32 [tiles + 1] in vectors of 16 bytes, shape: (m, k).
    Raises TypeError for wrong dtypes, ValueError for anything that does not describe a matrix of this shape.
    """

    entries: Tensor
    offsets: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _check_structure(self)
        for first, last in _tile_ranges(self.shape):
            _check_entries(self, first, last)

    @classmethod
    def from_dense(cls, w: Tensor) -> TiledCSL:
        """Convert w [m, k] float16, of any strides, on its own device, a strip of rows at a time."""
        if w.dtype != torch.float16 or w.dim() != 2:
            raise TypeError(f"w must be a 2-D float16 tensor, not {w.dim()}-D {w.dtype}")
        return cls._from_strips(lambda begin, end: w[begin:end], (w.shape[0], w.shape[1]), w.device)

    @classmethod
    def from_csr(cls, crow_indices: Tensor, col_indices: Tensor, values: Tensor, shape: tuple[int, int]) -> TiledCSL:
        """Convert CSR arrays: crow_indices int [m + 1], col_indices int [nnz], values float16 [nnz].

        Columns of a row may come in any order. Repeated ones are summed in float32 and rounded once; zeros
        among the values, and sums that are zero, are not stored. Raises ValueError for indices that do not fit.
        """
        m, k = shape
        crow, col = crow_indices.long(), col_indices.long()
        if values.dtype != torch.float16:
            raise TypeError(f"values must be float16, not {values.dtype}")
        if col.shape != values.shape or values.dim() != 1:
            raise ValueError(f"{tuple(col.shape)} column indices for {tuple(values.shape)} values; both must be [nnz]")
        _check_offsets(crow, "crow_indices", m + 1, len(values))
        _check_indices(col, "column", k)

        def strip(begin: int, end: int) -> Tensor:
            bounds = crow[begin : end + 1]
            entries = slice(int(bounds[0]), int(bounds[-1]))
            rows = torch.repeat_interleave(torch.arange(end - begin, device=col.device), bounds.diff())
            dense = torch.zeros(end - begin, k, dtype=torch.float32, device=values.device)
            dense.index_put_((rows, col[entries]), values[entries].float(), accumulate=True)
            return dense.half()

        return cls._from_strips(strip, shape, values.device)

    @classmethod
    def from_coo(cls, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> TiledCSL:
        """Convert COO arrays, in any order: indices int [2, nnz] (row, column), values float16 [nnz].

        Repeated elements are summed as in `from_csr`. Raises ValueError for indices that do not fit.
        """
        if indices.dim() != 2 or indices.shape[0] != 2:
            raise ValueError(f"indices must be [2, nnz], not {tuple(indices.shape)}")
        rows, columns = indices.long()
        _check_indices(rows, "row", shape[0])
        order = torch.argsort(rows, stable=True)
        crow = torch.zeros(shape[0] + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(torch.bincount(rows, minlength=shape[0]), 0, out=crow[1:])
        return cls.from_csr(crow, columns[order], values[order], shape)

    @classmethod
    def _from_strips(
        cls, strip: Callable[[int, int], Tensor], shape: tuple[int, int], device: torch.device
    ) -> TiledCSL:
        """Encode the dense rows `strip(begin, end)`, float16, one strip after the other."""
        if min(shape) < 1:
            raise ValueError(f"a matrix of shape {tuple(shape)} has no elements")
        m, k = shape
        rows = max(1, _STRIP_ELEMENTS // (TILE_ROWS * k)) * TILE_ROWS
        parts = [_encode(_cut_into_tiles(strip(begin, min(begin + rows, m)))) for begin in range(0, m, rows)]
        counts = torch.cat([counts for _, counts in parts])
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=device)
        torch.cumsum(counts // VECTOR, 0, out=offsets[1:])
        if offsets[-1] > torch.iinfo(torch.int32).max:
            raise ValueError(f"{int(offsets[-1])} vectors of 16 bytes do not fit 32-bit offsets; split the matrix")
        return cls(torch.cat([entries for entries, _ in parts]), offsets.int(), (m, k))

    def to_dense(self) -> Tensor:
        """The matrix [m, k] float16."""
        m, k = self.shape
        dense = torch.empty(m, k, dtype=torch.float16, device=self.device)
        tiles_k = tile_grid(m, k)[1]
        for row, begin in enumerate(range(0, m, TILE_ROWS)):
            tiles = expand_tiles(self.entries, self.offsets, row * tiles_k, (row + 1) * tiles_k)
            strip = tiles.transpose(0, 1).reshape(TILE_ROWS, tiles_k * TILE_COLS)
            dense[begin : begin + TILE_ROWS] = strip[: m - begin, :k]
        return dense

    def to(self, device: torch.device | str) -> TiledCSL:
        """The same matrix on `device`."""
        return TiledCSL(self.entries.to(device), self.offsets.to(device), self.shape)

    @property
    def device(self) -> torch.device:
        return self.entries.device

    @property
    def nbytes(self) -> int:
        """Bytes that one multiplication reads of the matrix: entries, padding included, and offsets."""
        return self.entries.nbytes + self.offsets.nbytes


def tile_grid(m: int, k: int) -> tuple[int, int]:
    """Tiles along m and along k."""
    return -(-m // TILE_ROWS), -(-k // TILE_COLS)


def expand_tiles(entries: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
    """Tiles `first` to `last` (excluded), as [tiles, 128, 64] float16 with zeros where nothing is stored."""
    tile, words = _entries_of(entries, offsets, first, last)
    values = (words & 0xFFFF).to(torch.int16).view(torch.float16)
    shared = torch.zeros((last - first) * _TILE_SIZE, dtype=torch.float16, device=entries.device)
    shared[tile * _TILE_SIZE + (words >> 17)] = values
    elements = _place_of_element(entries.device)
    return shared.view(last - first, _TILE_SIZE)[:, elements].view(-1, TILE_ROWS, TILE_COLS)


def _entries_of(entries: Tensor, offsets: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The tile, counted from `first`, int64, and the word, int32, of every entry of some tiles."""
    bounds = offsets[first : last + 1].long() * VECTOR
    words = entries[int(bounds[0]) : int(bounds[-1])]
    return torch.repeat_interleave(torch.arange(last - first, device=entries.device), bounds.diff()), words


def _place_of_element(device: torch.device) -> Tensor:
    """Where element row * 64 + column of a tile lies in shared memory, in halves: int64 [8192]."""
    element = torch.arange(_TILE_SIZE, device=device)
    row, column = element // TILE_COLS, element % TILE_COLS
    chunk = (column // _CHUNK) ^ (row % _CHUNK)
    return row * TILE_COLS + chunk * _CHUNK + column % _CHUNK


def _element_of_place(device: torch.device) -> Tensor:
    """The inverse of `_place_of_element`."""
    return torch.argsort(_place_of_element(device))


def _cut_into_tiles(strip: Tensor) -> Tensor:
    """Rows [r, k] as whole tiles [tiles, 8192], filled up with zeros."""
    rows, columns = strip.shape
    tiles_m, tiles_k = tile_grid(rows, columns)
    padded = torch.nn.functional.pad(strip, (0, tiles_k * TILE_COLS - columns, 0, tiles_m * TILE_ROWS - rows))
    return padded.view(tiles_m, TILE_ROWS, tiles_k, TILE_COLS).transpose(1, 2).reshape(-1, _TILE_SIZE)


def _encode(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Entries int32, tile after tile, and their count per tile, of dense tiles [tiles, 8192]."""
    device = tiles.device
    place = torch.arange(_TILE_SIZE, device=device, dtype=torch.int32)
    # A bank holds the two halves of every 32nd word; list the places bank by bank.
    place = place.view(_SLOTS // 2, _BANKS, 2).transpose(0, 1).flatten()
    values = tiles[:, _element_of_place(device)[place]]
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
    target = (begin + _lane_order(position, counts // VECTOR)).flatten()

    index = stored.flatten().nonzero().squeeze(1)
    first_turn = index & -_TILE_SIZE  # of its tile
    entries = torch.empty(len(index), dtype=torch.int32, device=device)
    entries[target[first_turn + turn[index]]] = words.flatten()[index]
    return entries, counts.flatten()


def _padding(stored: Tensor) -> Tensor:
    """The first free places of every tile that fill its last vector; bool like `stored` [tiles, places]."""
    free = ~stored
    missing = -stored.sum(1, keepdim=True) % VECTOR
    return free & (free.cumsum(1, dtype=torch.int16) <= missing)


def _lane_order(position: Tensor, vectors: Tensor) -> Tensor:
    """Index in its tile of the entry that is stored to shared memory as number `position` [tiles, ...].

    A warp loads 32 of the tile's `vectors` [tiles, 1] (fewer at the end) and stores entry 0 of them all, then
    entry 1, and so on.
    """
    within = position & (_WARP * VECTOR - 1)
    group = position - within
    lanes = (vectors - group // VECTOR).clamp_(max=_WARP)
    entry = sum((within >= number * lanes).to(position.dtype) for number in range(1, VECTOR))
    return group + (within - entry * lanes) * VECTOR + entry


def _tile_ranges(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """All tiles, some at a time."""
    tiles_m, tiles_k = tile_grid(*shape)
    step = _STRIP_ELEMENTS // _TILE_SIZE
    for first in range(0, tiles_m * tiles_k, step):
        yield first, min(first + step, tiles_m * tiles_k)


def _check_structure(matrix: TiledCSL) -> None:
    entries, offsets = matrix.entries, matrix.offsets
    for name, array in (("entries", entries), ("offsets", offsets)):
        if array.dtype != torch.int32 or array.dim() != 1 or not array.is_contiguous():
            raise TypeError(f"{name} must be a contiguous 1-D int32 tensor, not {array.dim()}-D {array.dtype}")
    if entries.device != offsets.device:
        raise ValueError(f"entries on {entries.device} but offsets on {offsets.device}")
    if len(entries) % VECTOR or entries.data_ptr() % (4 * VECTOR):
        raise ValueError(f"{len(entries)} entries: they must be whole vectors of 16 bytes, aligned to 16 bytes")
    if min(matrix.shape) < 1:
        raise ValueError(f"a matrix of shape {tuple(matrix.shape)} has no elements")
    tiles_m, tiles_k = tile_grid(*matrix.shape)
    _check_offsets(offsets, "offsets", tiles_m * tiles_k + 1, len(entries) // VECTOR)
    if offsets.diff().max() > _TILE_SIZE // VECTOR:
        raise ValueError("offsets give a tile more entries than it has elements")


def _check_offsets(offsets: Tensor, name: str, length: int, end: int) -> None:
    if tuple(offsets.shape) != (length,):
        raise ValueError(f"{name} has shape {tuple(offsets.shape)}; this matrix needs ({length},)")
    if offsets[0] != 0 or offsets[-1] != end or (offsets.diff() < 0).any():
        raise ValueError(f"{name} must rise from 0 to {end}")


def _check_indices(indices: Tensor, what: str, size: int) -> None:
    if len(indices) and not (indices.min() >= 0 and indices.max() < size):
        raise ValueError(f"{what} indices run from {indices.min()} to {indices.max()}; they must be in [0, {size})")


def _check_entries(matrix: TiledCSL, first: int, last: int) -> None:
    """Every place lies in its tile and is taken once; what is not zero lies in the matrix."""
    tile, words = _entries_of(matrix.entries, matrix.offsets, first, last)
    place = words >> 17
    if (words & 1 << 16).any() or ((place < 0) | (place >= _TILE_SIZE)).any():
        raise ValueError("an entry's place is outside its tile")
    home = tile * _TILE_SIZE + place
    owner = torch.empty((last - first) * _TILE_SIZE, dtype=torch.int32, device=words.device)
    number = torch.arange(len(words), device=words.device, dtype=torch.int32)
    owner[home] = number
    if (owner[home] != number).any():
        raise ValueError("two entries of a tile have the same place")
    m, k = matrix.shape
    tiles_k = tile_grid(m, k)[1]
    element = _element_of_place(words.device).int()[place]
    tiles = torch.arange(first, last, device=words.device, dtype=torch.int32)
    rows_left, columns_left = m - tiles // tiles_k * TILE_ROWS, k - tiles % tiles_k * TILE_COLS
    outside = (element // TILE_COLS >= rows_left[tile]) | (element % TILE_COLS >= columns_left[tile])
    if (outside & (words & 0xFFFF != 0)).any():
        raise ValueError(f"an entry lies outside the matrix of shape {tuple(matrix.shape)}")
