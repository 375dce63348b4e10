"""Tensors as the copy engine of sm_90 sees them: an argument for kernels that load tiles (include/tma.cuh)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

COLUMNS = 64  # of a tile: 128 bytes, the widest swizzle
_STRIDE_LIMIT = 1 << 40


@dataclass(frozen=True)
class TensorMap:
    """A view [batch, heads, rows, columns] of 16-bit elements, to be loaded in tiles of `tile_rows` x COLUMNS."""

    tensor: torch.Tensor
    tile_rows: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Extents, the innermost first."""
        return tuple(reversed(self.tensor.shape))

    @property
    def stride_bytes(self) -> tuple[int, int, int]:
        """Of rows, heads and batch; along an axis of one, where any will do, the smallest that is allowed."""
        strides = zip(self.tensor.shape[:3], self.tensor.stride()[:3], strict=True)
        return tuple(reversed([16 if size == 1 else stride * self.tensor.itemsize for size, stride in strides]))


def loadable(tensor: torch.Tensor) -> bool:
    """Whether a TensorMap of `tensor` is possible: CUDA driver API, cuTensorMapEncodeTiled."""
    strides = TensorMap(tensor, 1).stride_bytes
    return (
        tensor.numel() > 0
        and tensor.stride(-1) == 1
        and tensor.data_ptr() % 16 == 0
        and all(0 < stride < _STRIDE_LIMIT and stride % 16 == 0 for stride in strides)
    )


def encode(map_: TensorMap) -> bytes:
    """The driver's 128 bytes for `map_`. Raises ValueError when the driver refuses it."""
    tensor = map_.tensor
    return _encode(tensor.dtype, tensor.data_ptr(), map_.sizes, map_.stride_bytes, map_.tile_rows)


@functools.lru_cache(maxsize=1024)  # a training step launches with the same few maps again and again
def _encode(
    dtype: torch.dtype, address: int, sizes: tuple[int, ...], stride_bytes: tuple[int, ...], tile_rows: int
) -> bytes:
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    kind = {
        torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[dtype]
    status, encoded = driver.cuTensorMapEncodeTiled(
        kind,
        len(sizes),
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride) for stride in stride_bytes],
        [driver.cuuint32_t(extent) for extent in (COLUMNS, tile_rows, 1, 1)],
        [driver.cuuint32_t(1) for _ in sizes],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"no tensor map of extents {sizes}, strides of {stride_bytes} bytes: {status.name}")
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
