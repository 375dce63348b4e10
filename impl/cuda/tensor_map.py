"""Tensors as the copy engine of sm_90 sees them: an argument for kernels that load tiles (include/tma.cuh)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

MAP_BYTES = 128  # of an encoded map
_STRIDE_LIMIT = 1 << 40


@dataclass(frozen=True)
class TensorMap:
    """A view [batch, heads, rows, columns] of 16-bit elements, to be loaded in tiles of `tile_rows` x `tile_columns`.

    Tiles are swizzled by the bytes of their rows: 64, 32 or 16 columns; 8 are not.
    """

    tensor: torch.Tensor
    tile_rows: int
    tile_columns: int = 64

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Extents, the innermost first."""
        return tuple(reversed(self.tensor.shape))

    @property
    def stride_bytes(self) -> tuple[int, int, int]:
        """Of rows, heads and batch; along an axis of one, where any will do, the smallest that is allowed."""
        return _stride_bytes(self.tensor.shape, self.tensor.stride(), self.tensor.itemsize)


# Asked for every launch, of the same few shapes.
@functools.lru_cache(maxsize=1024)
def _stride_bytes(shape: torch.Size, strides: tuple[int, ...], itemsize: int) -> tuple[int, int, int]:
    outer = zip(shape[:3], strides[:3], strict=True)
    return tuple(reversed([16 if size == 1 else stride * itemsize for size, stride in outer]))


@functools.lru_cache(maxsize=1024)
def _layout_loadable(shape: torch.Size, strides: tuple[int, ...], itemsize: int) -> bool:
    outer = _stride_bytes(shape, strides, itemsize)
    return 0 not in shape and strides[-1] == 1 and all(0 < s < _STRIDE_LIMIT and s % 16 == 0 for s in outer)


def loadable(tensor: torch.Tensor) -> bool:
    """Whether a TensorMap of `tensor` is possible: CUDA driver API, cuTensorMapEncodeTiled."""
    return tensor.data_ptr() % 16 == 0 and _layout_loadable(tensor.shape, tensor.stride(), tensor.itemsize)


def encode(map_: TensorMap) -> bytes:
    """The driver's 128 bytes for `map_`. Raises ValueError when the driver refuses it."""
    tensor = map_.tensor
    return _encode(tensor.dtype, tensor.data_ptr(), map_.sizes, map_.stride_bytes, (map_.tile_columns, map_.tile_rows))


@functools.lru_cache(maxsize=1024)  # a training step launches with the same few maps again and again
def _encode(
    dtype: torch.dtype, address: int, sizes: tuple[int, ...], stride_bytes: tuple[int, ...], tile: tuple[int, int]
) -> bytes:
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    kind = {
        torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[dtype]
    swizzles = driver.CUtensorMapSwizzle
    swizzle = {
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        16: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        8: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
    }[tile[0]]
    rank = len(sizes)
    encoded = aligned_buffer(MAP_BYTES)
    # Not through cuda.bindings, whose CUtensorMap objects are not aligned as the driver wants them.
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(encoded)),
        ctypes.c_int(kind),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*stride_bytes),
        (ctypes.c_uint32 * rank)(*tile, 1, 1),
        (ctypes.c_uint32 * rank)(1, 1, 1, 1),
        ctypes.c_int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        ctypes.c_int(swizzle),
        ctypes.c_int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        ctypes.c_int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        name = driver.CUresult(status).name
        raise ValueError(f"no tensor map of extents {sizes}, strides of {stride_bytes} bytes: {name}")
    return encoded.raw


def aligned_buffer(size: int) -> ctypes.Array:
    """`size` bytes at a multiple of MAP_BYTES, the strictest alignment of any kernel argument."""
    room = (ctypes.c_char * (size + MAP_BYTES))()
    return (ctypes.c_char * size).from_buffer(room, -ctypes.addressof(room) % MAP_BYTES)
