"""The compressed weights: Tiled-CSL as published, a bitmap decoded in registers, and words for 2:4 products."""

from __future__ import annotations

from impl.flash_llm.formats.base import SparseMatrix
from impl.flash_llm.formats.bitmap import Bitmap
from impl.flash_llm.formats.tiled_csl import TiledCSL
from impl.flash_llm.formats.two_of_four import TwoOfFour

__all__ = ["FORMATS", "Bitmap", "SparseMatrix", "TiledCSL", "TwoOfFour"]

FORMATS: dict[str, type[SparseMatrix]] = {kind.name: kind for kind in (TiledCSL, Bitmap, TwoOfFour)}
