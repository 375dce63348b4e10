"""Which way a product goes: the rules that pick a format and the dense path, the same for every shape."""

from __future__ import annotations

from impl.flash_llm.formats import Bitmap, SparseMatrix, TiledCSL, TwoOfFour
from impl.flash_llm.kernels import Device, has_kernel

_WIDEST_TILE = 64  # columns of x that are multiplied for one reading of W
# Times in units of a dense product with a few columns of x, which is the time of reading W: a sparse product of 64
# columns; expanding W and taking a dense product. Measured on an H200, cold, W of 28672 x 7168 with 80 % zeros.
_PASS = {"tiled_csl": 1.15, "bitmap": 0.8, "two_of_four": 0.71}
_EXPANDED = 2.6
_FEW = 0.35  # non-zeros of all elements, up to which two of four is the faster: measured likewise, N = 16


def choose_format(nonzeros: int, shape: tuple[int, int], device: Device) -> type[SparseMatrix]:
    """The format with a kernel for `device` that is multiplied fastest: two of four where at most 35 % of W [m, k] is
    not zero, else the bitmap, and Tiled-CSL on a GPU that has neither.

    Raises NotImplementedError when `device` has no kernel.
    """
    m, k = shape
    kinds = (TwoOfFour, Bitmap, TiledCSL) if nonzeros <= _FEW * m * k else (Bitmap, TwoOfFour, TiledCSL)
    usable = [kind for kind in kinds if has_kernel(kind.name, device)]
    if not usable:
        raise NotImplementedError(f"no kernel of any format runs on compute capability {device.capability}")
    return usable[0]


def dense_columns(kind: str) -> int:
    """From how many columns of x on the weight is expanded and multiplied densely: a sparse product takes a pass over W
    for every 64 columns, and so many passes take longer."""
    return _WIDEST_TILE * int(_EXPANDED / _PASS[kind]) + 1
