"""cuSPARSE's generic SpMM (https://docs.nvidia.com/cuda/cusparse/#cusparsespmm) through ctypes."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Tensor

    Csr = tuple[Tensor, Tensor, Tensor]  # row offsets [m + 1] and columns [nnz], both int32; values [nnz]

torch = lazy_import("torch")

LIBRARY = "libcusparse.so.12"  # in CUDA 12 and in CUDA 13
ALGORITHMS = {"ALG1": 4, "ALG2": 6, "ALG3": 12}  # CUSPARSE_SPMM_CSR_ALG...
NOT_SUPPORTED = 10  # CUSPARSE_STATUS_...
# Of cusparse.h and library_types.h: CUSPARSE_OPERATION_..., CUSPARSE_INDEX_..., CUSPARSE_ORDER_..., CUDA_R_...
_NON_TRANSPOSE, _INDEX_32I, _INDEX_BASE_ZERO, _ORDER_ROW = 0, 2, 0, 2
_DATA_TYPES = {"torch.float32": 0, "torch.float16": 2, "torch.bfloat16": 14}
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)

_POINTER, _ENUM, _INT64, _OUT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)
# handle, opA, opB, alpha, matA, matB, beta, matC, computeType, alg
_SPMM = [_POINTER, _ENUM, _ENUM, *[_POINTER] * 5, _ENUM, _ENUM]
_SIGNATURES = {
    "cusparseCreate": [_OUT],
    "cusparseSetStream": [_POINTER, _POINTER],
    "cusparseCreateCsr": [_OUT, *[_INT64] * 3, *[_POINTER] * 3, *[_ENUM] * 4],
    "cusparseCreateDnMat": [_OUT, *[_INT64] * 3, _POINTER, _ENUM, _ENUM],
    "cusparseDestroySpMat": [_POINTER],
    "cusparseDestroyDnMat": [_POINTER],
    "cusparseSpMM_bufferSize": [*_SPMM, ctypes.POINTER(ctypes.c_size_t)],
    "cusparseSpMM_preprocess": [*_SPMM, _POINTER],
    "cusparseSpMM": [*_SPMM, _POINTER],
}


class CusparseError(RuntimeError):
    """A call that returned another status than success: its number and its name."""

    def __init__(self, function: str, status: int, name: str):
        super().__init__(f"{function}: {name}")
        self.status, self.name = status, name


@functools.cache
def library() -> ctypes.CDLL:
    """cuSPARSE, its functions declared and their status checked. Raises OSError where torch has loaded none."""
    if torch.version.cuda is None:
        raise OSError("this PyTorch is built without CUDA")
    loaded = ctypes.CDLL(LIBRARY)  # by its bare name: the one that torch brought and has loaded
    for name, argtypes in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype, function.errcheck = argtypes, ctypes.c_int, _raise_unless_success
    loaded.cusparseGetErrorName.argtypes, loaded.cusparseGetErrorName.restype = [ctypes.c_int], ctypes.c_char_p
    return loaded


def _raise_unless_success(status: int, function: Callable[..., int], arguments: tuple[object, ...]) -> None:
    if status:
        raise CusparseError(function.__name__, status, library().cusparseGetErrorName(status).decode())


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    """The handle of the current CUDA device, number `device`; it lives as long as the process."""
    handle = ctypes.c_void_p()
    library().cusparseCreate(ctypes.byref(handle))
    return handle


def to_csr(w: Tensor) -> Csr:
    """w [m, k] in CSR. An all-zero w keeps one of its zeros: what cuSPARSE makes of none is not documented."""
    compressed = w.to_sparse_csr()
    offsets, columns, values = compressed.crow_indices().int(), compressed.col_indices().int(), compressed.values()
    if not values.numel():
        offsets[1:] = 1
        columns, values = columns.new_zeros(1), values.new_zeros(1)
    return offsets, columns, values


class CsrProduct:
    """y = W x by one of ALGORITHMS, planned once; a call overwrites y, on torch's current stream.

    x [k, n] and y [m, n] are row-major and on the current CUDA device, x of the values' dtype and y of that or
    float32, in which sums are taken. A call allocates nothing and can be captured in a CUDA graph. Raises
    CusparseError, with status NOT_SUPPORTED where the library does not take the algorithm or the types.
    """

    def __init__(self, csr: Csr, x: Tensor, y: Tensor, algorithm: str):
        offsets, columns, values = csr
        pointers = (offsets.data_ptr(), columns.data_ptr(), values.data_ptr())
        types = (_INDEX_32I, _INDEX_32I, _INDEX_BASE_ZERO, _DATA_TYPES[str(values.dtype)])
        # The sparse descriptor keeps what preprocessing found: each algorithm has its own.
        sparse = self._create("Csr", "SpMat", len(offsets) - 1, len(x), len(values), *pointers, *types)
        dense_x, dense_y = (
            self._create("DnMat", "DnMat", *t.shape, t.stride(0), t.data_ptr(), _DATA_TYPES[str(t.dtype)], _ORDER_ROW)
            for t in (x, y)
        )
        self.y, self._handle = y, _handle(torch.cuda.current_device())
        operands = (ctypes.byref(_ONE), sparse, dense_x, ctypes.byref(_ZERO), dense_y, _DATA_TYPES["torch.float32"])
        operation = (self._handle, _NON_TRANSPOSE, _NON_TRANSPOSE, *operands, ALGORITHMS[algorithm])
        size = ctypes.c_size_t()
        library().cusparseSpMM_bufferSize(*operation, ctypes.byref(size))
        workspace = torch.empty(max(1, size.value), dtype=torch.uint8, device=x.device)
        self._arguments = (*operation, workspace.data_ptr())
        self._set_stream()
        library().cusparseSpMM_preprocess(*self._arguments)
        self._kept = (csr, x, workspace)  # what the descriptors point to

    def __call__(self) -> None:
        self._set_stream()
        library().cusparseSpMM(*self._arguments)

    def _set_stream(self) -> None:
        library().cusparseSetStream(self._handle, torch.cuda.current_stream().cuda_stream)

    def _create(self, create: str, destroy: str, *arguments: int) -> ctypes.c_void_p:
        """A descriptor, destroyed with this object."""
        descriptor = ctypes.c_void_p()
        getattr(library(), f"cusparseCreate{create}")(ctypes.byref(descriptor), *arguments)
        weakref.finalize(self, getattr(library(), f"cusparseDestroy{destroy}"), descriptor)
        return descriptor
