"""What the formats share: a matrix in tiles, converted and checked a strip at a time, and its way back."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

STRIP_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 24}  # converted or checked at once: at most about 80 bytes each


@dataclass(frozen=True)
class SparseMatrix(ABC):
    """A sparse fp16 matrix [m, k], cut into tiles that are numbered row by row; checked whole when it is made.

    data: int32 [units, words], what is stored, tile after tile; offsets: int32 [tiles + 1], the unit at which each tile
    begins and the last one ends; shape: (m, k). Raises TypeError for wrong dtypes, ValueError for anything that does
    not describe a matrix of this shape.

    Stored is what compares unequal to zero, NaN included: every value comes back bit for bit, except that -0.0 comes
    back as +0.0 (weights pruned by multiplication are full of -0.0).
    """

    data: Tensor
    offsets: Tensor
    shape: tuple[int, int]
    longest: int = field(init=False)  # units of the longest tile

    name: ClassVar[str]
    version: ClassVar[str] = "1"  # of the layout, on disk
    tile: ClassVar[tuple[int, int]]  # rows and columns
    words: ClassVar[int]  # of 32 bits in a unit
    units_of_tile: ClassVar[tuple[int, int]]  # fewest and most

    def __post_init__(self) -> None:
        self._check_structure()
        object.__setattr__(self, "longest", int(self.offsets.diff().max()))
        tiles_m, tiles_k = self.grid(*self.shape)
        step = _strip_elements(self.device) // (self.tile[0] * self.tile[1])
        for first in range(0, tiles_m * tiles_k, step):
            self._check_tiles(first, min(first + step, tiles_m * tiles_k))

    @classmethod
    def of_parts(cls, data: Tensor, offsets: Tensor, shape: tuple[int, int], longest: int) -> Self:
        """A matrix whose parts a conversion made; not checked again."""
        matrix = object.__new__(cls)
        for name, value in (("data", data), ("offsets", offsets), ("shape", shape), ("longest", longest)):
            object.__setattr__(matrix, name, value)
        return matrix

    @classmethod
    def grid(cls, m: int, k: int) -> tuple[int, int]:
        """Tiles along m and along k."""
        return -(-m // cls.tile[0]), -(-k // cls.tile[1])

    @classmethod
    def from_dense(cls, w: Tensor) -> Self:
        """Convert w [m, k] float16, of any strides, on its own device, a strip of rows at a time."""
        if w.dtype != torch.float16 or w.dim() != 2:
            raise TypeError(f"w must be a 2-D float16 tensor, not {w.dim()}-D {w.dtype}")
        return cls._from_strips(lambda begin, end: w[begin:end], (w.shape[0], w.shape[1]), w.device)

    @classmethod
    def from_csr(cls, crow_indices: Tensor, col_indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Self:
        """Convert CSR arrays: crow_indices int [m + 1], col_indices int [nnz], values float16 [nnz].

        Columns of a row may come in any order. Repeated ones are summed in float32 and rounded once; zeros
        among the values, and sums that are zero, are not stored. Raises ValueError for indices that do not fit,
        TypeError for ones that are no integers.
        """
        m, k = _whole(shape)
        crow, col = _integers(crow_indices, "crow_indices"), _integers(col_indices, "col_indices")
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
            return _scatter(rows * k + col[entries], values[entries], (end - begin, k))

        return cls._from_strips(strip, shape, values.device)

    @classmethod
    def from_coo(cls, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Self:
        """Convert COO arrays, in any order: indices int [2, nnz] (row, column), values float16 [nnz].

        Repeated elements are summed as in `from_csr`, and errors raised.
        """
        m, _ = _whole(shape)
        if indices.dim() != 2 or indices.shape[0] != 2:
            raise ValueError(f"indices must be [2, nnz], not {tuple(indices.shape)}")
        if values.shape != indices.shape[1:]:  # before they are put in order, which would leave out what is too much
            raise ValueError(f"{indices.shape[1]} elements for {tuple(values.shape)} values, which must be [nnz]")
        rows, columns = _integers(indices, "indices")
        _check_indices(rows, "row", m)
        crow = torch.zeros(m + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(torch.bincount(rows, minlength=m), 0, out=crow[1:])
        if (rows.diff() < 0).any():
            order = torch.argsort(rows, stable=True)
            columns, values = columns[order], values[order]
        return cls.from_csr(crow, columns, values, shape)

    @classmethod
    def _from_strips(cls, strip: Callable[[int, int], Tensor], shape: tuple[int, int], device: torch.device) -> Self:
        """Encode the dense rows `strip(begin, end)`, float16, one strip after the other."""
        m, k = _whole(shape)
        rows = max(1, _strip_elements(device) // (cls.tile[0] * k)) * cls.tile[0]
        parts = [cls._encode(cls._cut(strip(begin, min(begin + rows, m)))) for begin in range(0, m, rows)]
        counts = torch.cat([counts for _, counts in parts])
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=device)
        torch.cumsum(counts, 0, out=offsets[1:])
        if offsets[-1] > torch.iinfo(torch.int32).max:
            raise ValueError(f"{int(offsets[-1])} units do not fit 32-bit offsets; split the matrix")
        data = torch.cat([data for data, _ in parts])
        return cls.of_parts(data, offsets.int(), (m, k), int(counts.max()))

    @classmethod
    def _cut(cls, strip: Tensor) -> Tensor:
        """Rows [r, k] as whole tiles [tiles, rows, columns], filled up with zeros."""
        rows, columns = strip.shape
        (tiles_m, tiles_k), (tile_rows, tile_cols) = cls.grid(rows, columns), cls.tile
        padding = (0, tiles_k * tile_cols - columns, 0, tiles_m * tile_rows - rows)
        padded = torch.nn.functional.pad(strip, padding).view(tiles_m, tile_rows, tiles_k, tile_cols)
        return padded.transpose(1, 2).reshape(-1, tile_rows, tile_cols)

    @classmethod
    @abstractmethod
    def _encode(cls, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """The data of dense tiles [tiles, rows, columns], and the count of units of each."""

    @classmethod
    @abstractmethod
    def expand(cls, data: Tensor, offsets: Tensor, first: int, last: int) -> Tensor:
        """Tiles `first` to `last` (excluded), as [tiles, rows, columns] float16 with zeros where nothing is stored."""

    @abstractmethod
    def _check_tiles(self, first: int, last: int) -> None:
        """Raises ValueError for tiles `first` to `last` (excluded) that no conversion gives."""

    @classmethod
    def expand_all(cls, data: Tensor, offsets: Tensor, shape: tuple[int, int]) -> Tensor:
        """The matrix [m, k] float16 of these data and offsets."""
        m, k = shape
        rows, columns = cls.tile
        dense = torch.empty(m, k, dtype=torch.float16, device=data.device)
        tiles_k = cls.grid(m, k)[1]
        for row, begin in enumerate(range(0, m, rows)):
            tiles = cls.expand(data, offsets, row * tiles_k, (row + 1) * tiles_k)
            strip = tiles.transpose(0, 1).reshape(rows, tiles_k * columns)
            dense[begin : begin + rows] = strip[: m - begin, :k]
        return dense

    def to_dense(self) -> Tensor:
        """The matrix [m, k] float16."""
        return self.expand_all(self.data, self.offsets, self.shape)

    def to(self, device: torch.device | str) -> Self:
        """The same matrix on `device`."""
        return self.of_parts(self.data.to(device), self.offsets.to(device), self.shape, self.longest)

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Bytes that one multiplication reads of the matrix: data, padding included, and offsets."""
        return self.data.nbytes + self.offsets.nbytes

    def _check_structure(self) -> None:
        data, offsets = self.data, self.offsets
        for name, array, dim in (("data", data, 2), ("offsets", offsets, 1)):
            if array.dtype != torch.int32 or array.dim() != dim or not array.is_contiguous():
                raise TypeError(f"{name} must be a contiguous {dim}-D int32 tensor, not {array.dim()}-D {array.dtype}")
        if data.device != offsets.device:
            raise ValueError(f"data on {data.device} but offsets on {offsets.device}")
        if data.shape[1] != self.words or data.data_ptr() % 16:
            raise ValueError(f"data of {data.shape[1]} words: it must have {self.words}, and be aligned to 16 bytes")
        _whole(self.shape)
        tiles_m, tiles_k = self.grid(*self.shape)
        _check_offsets(offsets, "offsets", tiles_m * tiles_k + 1, len(data))
        counts, (fewest, most) = offsets.diff(), self.units_of_tile
        if (tile := first_true((counts < fewest) | (counts > most))) is not None:
            raise self._fault(tile, f"offsets give it {int(counts[tile])} units, which are {fewest} to {most}")

    def _outside(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Of tiles `first` to `last` (excluded) those that cross the matrix's edge, as indices from `first`, and which
        of their elements lie outside: bool [tiles, rows, columns]."""
        (m, k), (rows, columns) = self.shape, self.tile
        tiles_k = self.grid(m, k)[1]
        tile = torch.arange(first, last, device=self.device)
        row, column = tile // tiles_k * rows, tile % tiles_k * columns
        edge = torch.nonzero((row + rows > m) | (column + columns > k)).squeeze(1)
        below = row[edge, None] + torch.arange(rows, device=self.device) >= m
        right = column[edge, None] + torch.arange(columns, device=self.device) >= k
        return edge, below.unsqueeze(2) | right.unsqueeze(1)

    def _fault(self, tile: int, what: str) -> ValueError:
        """The error that `what` is wrong in a tile."""
        row, column = divmod(tile, self.grid(*self.shape)[1])
        return ValueError(f"tile {tile}, from row {row * self.tile[0]} and column {column * self.tile[1]}: {what}")


def _strip_elements(device: torch.device) -> int:
    """Raises ValueError for a device that the formats are not made on."""
    if device.type not in STRIP_ELEMENTS:
        raise ValueError(f"a matrix on {device}; it must be on one of {', '.join(STRIP_ELEMENTS)}")
    return STRIP_ELEMENTS[device.type]


def first_true(wrong: Tensor) -> int | None:
    """Index of the first True in a 1-D tensor, or None."""
    return int(wrong.int().argmax()) if wrong.any() else None


def _whole(shape: tuple[int, int]) -> tuple[int, int]:
    """m and k. Raises TypeError for other numbers than integers, ValueError where one is below 1."""
    m, k = (operator.index(size) for size in shape)
    if min(m, k) < 1:
        raise ValueError(f"a matrix of shape {(m, k)} has no elements")
    return m, k


def _integers(indices: Tensor, name: str) -> Tensor:
    """As int64. Raises TypeError for another kind, which would be rounded."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, not {indices.dtype}")
    return indices.long()


def _check_offsets(offsets: Tensor, name: str, length: int, end: int) -> None:
    if tuple(offsets.shape) != (length,):
        raise ValueError(f"{name} has shape {tuple(offsets.shape)}; this matrix needs ({length},)")
    if offsets[0] != 0 or offsets[-1] != end:
        raise ValueError(f"{name} must rise from 0 to {end}, not from {int(offsets[0])} to {int(offsets[-1])}")
    if (place := first_true(offsets.diff() < 0)) is not None:
        falls = f"{int(offsets[place])} to {int(offsets[place + 1])}"
        raise ValueError(f"{name} must rise from 0 to {end}; at {place + 1} they fall from {falls}")


def _scatter(places: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """`values` at `places` of a matrix of zeros; those of one place are summed in float32 and rounded once."""
    dense = torch.zeros(shape[0] * shape[1], dtype=torch.float16, device=values.device)
    dense.view(torch.int16)[places] = values.view(torch.int16)  # as integers: NaN keep their bits
    taken = torch.zeros_like(dense, dtype=torch.bool)
    taken[places] = True
    if taken.count_nonzero() < len(places):
        sums = torch.zeros(dense.shape, device=dense.device).index_put_((places,), values.float(), accumulate=True)
        dense = torch.where(torch.bincount(places, minlength=len(dense)) > 1, sums.half(), dense)
    return dense.view(shape)


def _check_indices(indices: Tensor, what: str, size: int) -> None:
    if len(indices) and not (indices.min() >= 0 and indices.max() < size):
        raise ValueError(f"{what} indices run from {indices.min()} to {indices.max()}; they must be in [0, {size})")
