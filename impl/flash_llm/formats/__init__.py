"""The compressed weights: Tiled-CSL as published, and a bitmap that is decoded in registers."""

from __future__ import annotations

from impl.flash_llm.formats.base import SparseMatrix
from impl.flash_llm.formats.bitmap import Bitmap
from impl.flash_llm.formats.tiled_csl import TiledCSL

__all__ = ["FORMATS", "Bitmap", "SparseMatrix", "TiledCSL"]

FORMATS: dict[str, type[SparseMatrix]] = {kind.name: kind for kind in (TiledCSL, Bitmap)}
