"""The formats whose tiles are blocks of 32 rows, each the share of one warp; their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from impl.cuda.build import Kernel
from impl.flash_llm.formats import Bitmap, TwoOfFour

BLOCK_ROWS = 32
BLOCK_OVERHEAD = 1024  # bytes of shared memory that the system takes from each block of threads
REGISTERS = 65536  # of an SM


@dataclass(frozen=True)
class WarpBlocks:
    """Such a format: columns of a block, bytes of the pieces that its offsets count, and the pieces of the longest
    block at about 80 % zeros, which KERNELS and their reports show."""

    kind: str
    cols: int
    piece_bytes: int
    nominal_pieces: int

    def kernel(
        self,
        arch: str,
        tile_n: int,
        warps: int,
        shared_bytes: int,
        max_registers: int,
        min_blocks_per_sm: int = 1,
        **macros: int,
    ) -> Kernel:
        """The specialisation of this format's source for `arch` for tiles of `tile_n` columns of X."""
        suffix = arch.replace("_", "")
        common = {"BLOCK_COLS": self.cols, "TILE_N": tile_n, "WARPS": warps, "MIN_BLOCKS_PER_SM": min_blocks_per_sm}
        return Kernel(
            name=f"flash_llm_{self.kind}_{suffix}_n{tile_n}_w{warps}",
            file=Path(__file__).parent / f"{self.kind}_{suffix}.cu",
            entry=f"{self.kind}_spmm_{suffix}",
            arch=arch,
            macros=tuple({**common, **macros}.items()),
            threads=32 * warps,
            dynamic_shared_bytes=shared_bytes,
            max_registers=max_registers,
            min_blocks_per_sm=min_blocks_per_sm,
        )


BITMAP = WarpBlocks("bitmap", Bitmap.tile[1], piece_bytes=128, nominal_pieces=27)
TWO_OF_FOUR = WarpBlocks("two_of_four", TwoOfFour.tile[1], piece_bytes=16, nominal_pieces=360)
