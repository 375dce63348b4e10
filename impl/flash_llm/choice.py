"""Which way a product goes: the rules, by bytes moved, that pick a format and the dense path."""

from __future__ import annotations

from impl.flash_llm.formats import Bitmap, SparseMatrix, TiledCSL

_WIDEST_TILE = 64  # columns of x that are multiplied for one reading of W


def choose_format(nonzeros: int, shape: tuple[int, int]) -> type[SparseMatrix]:
    """The format that holds a matrix [m, k] of so many non-zeros in the fewest bytes, padding apart.

    Tiled-CSL takes 4 bytes per non-zero, a bitmap 2 and one bit per element: the bitmap from 1/16 density on.
    """
    m, k = shape
    return TiledCSL if 4 * nonzeros < 2 * nonzeros + m * k / 8 else Bitmap


def dense_columns(nbytes: int, shape: tuple[int, int]) -> int:
    """From how many columns of x on a dense product by the expanded W [m, k] of `nbytes` moves fewer bytes.

    The sparse product reads the compressed W anew for every 64 columns; the other way reads it once, and writes and
    reads 2 bytes for each element.
    """
    m, k = shape
    return _WIDEST_TILE * (1 + 4 * m * k // nbytes) + 1
