"""Sputnik's format and kernel (kernels/sputnik_sm70.cu): CSR with 16-bit columns, rows by length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Tensor

    from impl.cuda.build import Kernel

torch = lazy_import("torch")

MAX_K = 2**15  # columns that a signed 16-bit number can name
_THREADS, _WARP = 128, 32
_PAD = 4  # elements that a vector load may read beyond the last row
_VECTORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class SputnikMatrix:
    """W [m, k] fp16: values and int16 columns of all rows, int32 offsets [m + 1], and the rows, the longest first."""

    values: Tensor
    columns: Tensor
    offsets: Tensor
    order: Tensor

    @classmethod
    def from_dense(cls, w: Tensor) -> SputnikMatrix:
        """Raises ValueError for more columns than 16 bits can name."""
        if w.shape[1] > MAX_K:
            raise ValueError(f"16-bit signed column ids address {MAX_K} columns, not {w.shape[1]}")
        csr = w.to_sparse_csr()
        lengths = csr.crow_indices().diff()
        return cls(
            torch.nn.functional.pad(csr.values(), (0, _PAD)),
            torch.nn.functional.pad(csr.col_indices().short(), (0, _PAD)),
            csr.crow_indices().int(),
            lengths.argsort(descending=True, stable=True).int(),
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.values, self.columns, self.offsets, self.order))


@dataclass(frozen=True)
class Shape:
    """Columns of Y of a subwarp, and of each of its lanes."""

    tile_n: int
    vector: int

    def kernel(self, accumulate: bool) -> Kernel:
        from impl.cuda.build import Kernel

        return Kernel(
            name=f"sputnik_n{self.tile_n}_v{self.vector}" + ("_add" if accumulate else ""),
            file=Path(__file__).parent / "kernels" / "sputnik_sm70.cu",
            entry="sputnik_spmm",
            arch="sm_70",
            macros=(("TILE_N", self.tile_n), ("VECTOR", self.vector), ("ACCUMULATE", int(accumulate))),
            threads=_THREADS,
            dynamic_shared_bytes=0,
            max_registers=80,
            min_blocks_per_sm=6,
        )


def shapes(n: int) -> list[Shape]:
    """What can be tried for x [k, n], the widest vectors first: a tile holds n, or 64 columns of it, or a warp's."""
    tile_n = next((width for width in (8, 16, 32) if width >= n), 64)
    return [Shape(min(tile_n, _WARP * v), v) for v in reversed(_VECTORS) if n % v == 0]


def multiply(
    matrix: SputnikMatrix, x: Tensor, y: Tensor, shape: Shape, launch: Callable[..., None], accumulate: bool = False
) -> None:
    """y [m, n] = W x [k, n], or y += W x; all contiguous float16. `launch` is impl.cuda.launch's or the emulator's."""
    import numpy as np

    m, n = y.shape
    rows = _THREADS // (shape.tile_n // shape.vector)
    operands = (matrix.values, matrix.columns, matrix.offsets, matrix.order, x, y)
    grid = (-(-m // rows), -(-n // shape.tile_n), 1)
    launch(shape.kernel(accumulate), grid, (*operands, np.int32(m), np.int32(n)))
