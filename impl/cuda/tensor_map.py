"""Tensors as the copy engine of sm_90 sees them: an argument for kernels that load tiles (include/tma.cuh)."""

from __future__ import annotations

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
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    status, encoded = driver.cuTensorMapEncodeTiled(
        {
            torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        }[map_.tensor.dtype],
        4,
        map_.tensor.data_ptr(),
        [driver.cuuint64_t(size) for size in map_.sizes],
        [driver.cuuint64_t(stride) for stride in map_.stride_bytes],
        [driver.cuuint32_t(extent) for extent in (COLUMNS, map_.tile_rows, 1, 1)],
        [driver.cuuint32_t(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"no tensor map of {tuple(map_.tensor.shape)}, strides {map_.tensor.stride()}: {status.name}")
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
