"""Launch kernels through cuda.core on torch's current stream; captured by CUDA graphs like any other work."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np
import torch
from cuda.bindings import driver
from cuda.core import Kernel as LoadedKernel
from cuda.core import LaunchConfig, ObjectCode, Stream
from cuda.core import launch as cuda_launch

from impl.cuda.build import Kernel, build
from impl.cuda.tensor_map import TensorMap, encode

Argument = torch.Tensor | TensorMap | np.int32 | np.int64 | np.float32


def launch(kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Argument]) -> None:
    """Run `kernel` over `grid` blocks on the current stream of the tensors' device.

    `args` are the entry's parameters in order: CUDA tensors (passed as pointers), maps of such tensors and numpy
    scalars, whose type is the C type. The first call on a device compiles and loads the kernel. Raises TypeError for an
    argument of another type, ValueError when there is no tensor or tensors are on different devices, and
    BuildError as `build` does.
    """
    device = _common_device(args)
    with torch.cuda.device(device):
        stream = _stream(device, torch.cuda.current_stream(device).cuda_stream)
        loaded = _loaded(kernel, device)
        if any(isinstance(argument, TensorMap) for argument in args):
            _launch_with_maps(kernel, loaded, grid, args, stream)
            return
        config = LaunchConfig(grid=grid, block=kernel.threads, shmem_size=kernel.dynamic_shared_bytes)
        cuda_launch(stream, config, loaded, *(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args))


def _launch_with_maps(
    kernel: Kernel, loaded: LoadedKernel, grid: tuple[int, int, int], args: Sequence[Argument], stream: Stream
) -> None:
    """As `launch`, by the driver itself: cuda.core passes no bytes by value."""
    values = [ctypes.create_string_buffer(content, len(content)) for content in map(_bytes, args)]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    (status,) = driver.cuLaunchKernel(
        driver.CUfunction(int(loaded.handle)),
        *grid,
        *(kernel.threads, 1, 1),
        kernel.dynamic_shared_bytes,
        driver.CUstream(int(stream.handle)),
        ctypes.addressof(addresses),
        0,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.name}: launch: {status.name}")


def _bytes(argument: Argument) -> bytes:
    if isinstance(argument, TensorMap):
        return encode(argument)
    return np.uint64(argument.data_ptr()).tobytes() if isinstance(argument, torch.Tensor) else argument.tobytes()


def capture_id(stream: int) -> int:
    """Of the CUDA graph that a stream, given by its handle, is being captured into: a number no other graph has."""
    status, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"a captured stream does not say its graph: {status.name}")
    return int(number)


@functools.cache
def device_arch(device: int) -> str:
    """The architecture that kernels are built for on CUDA device number `device`.

    "sm_70" on 7.x and "sm_80" on 8.x, whose cubins run on every minor version; "sm_90a" on 9.0, and the like.
    """
    major, minor = torch.cuda.get_device_capability(device)
    return {7: "sm_70", 8: "sm_80"}.get(major, f"sm_{major}{minor}a")


def _common_device(args: Sequence[Argument]) -> int:
    for argument in args:
        if not isinstance(argument, Argument):
            raise TypeError(
                f"kernel arguments are tensors, tensor maps, numpy int32, int64 or float32, not {type(argument)}"
            )
    tensors = [argument.tensor if isinstance(argument, TensorMap) else argument for argument in args]
    devices = {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)}
    if len(devices) != 1 or any(device.type != "cuda" for device in devices):
        raise ValueError(f"kernel tensors must be on one CUDA device, not on {sorted(map(str, devices))}")
    return devices.pop().index


@functools.cache
def _stream(device: int, handle: int) -> Stream:
    return Stream.from_handle(handle)


@functools.cache
def _loaded(kernel: Kernel, device: int) -> LoadedKernel:
    cubin = build(kernel, device_arch(device))
    loaded = ObjectCode.from_cubin(cubin.code, name=kernel.name).get_kernel(kernel.entry)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle = driver.CUkernel(int(loaded.handle))
    (status,) = driver.cuKernelSetAttribute(attribute, kernel.dynamic_shared_bytes, handle, device)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.name}: {kernel.dynamic_shared_bytes} bytes of shared memory: {status.name}")
    return loaded
