"""Run a compiled kernel over a grid on the CPU, each buffer between guard zones, and report what went wrong."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from impl.cuda.build import Kernel
from impl.cuda.emulator.compile import Library, compile_kernel

Argument = torch.Tensor | np.int32 | np.int64 | np.float32

_GUARD_BYTES = 4096
_ALIGNMENT = 512  # of cudaMalloc


class EmulatedFault(RuntimeError):
    """A kernel did what hardware does not define. The message names kernel, block, thread and source line."""


class _Extent(ctypes.Structure):
    _fields_ = [("low", ctypes.c_size_t), ("high", ctypes.c_size_t)]


class _SharedArray(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class _Fault(ctypes.Structure):
    _fields_ = [
        ("found", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("code_offset", ctypes.c_uint64),
        ("message", ctypes.c_char * 1024),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("allocations", ctypes.POINTER(_Extent)),
        ("allocation_count", ctypes.c_int),
        ("shared_arrays", ctypes.POINTER(_SharedArray)),
        ("shared_array_count", ctypes.c_int),
        ("shared_symbol_offset", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("workers", ctypes.c_int),
        ("check_races", ctypes.c_int),
        ("check_uninitialized", ctypes.c_int),
        ("count", ctypes.c_int),
        ("counters", ctypes.c_void_p),
        ("counter_capacity", ctypes.c_int),
        ("counter_count", ctypes.c_int),
        ("fault", _Fault),
    ]


class _GuardedStorage:
    """A copy of a tensor's storage, with guard zones around it; write_back() copies it into the tensor."""

    def __init__(self, storage: torch.UntypedStorage):
        self.original = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.bytes = len(self.original)
        room = torch.zeros(self.bytes + 2 * _GUARD_BYTES + _ALIGNMENT, dtype=torch.uint8)
        start = _GUARD_BYTES + -(room.data_ptr() + _GUARD_BYTES) % _ALIGNMENT
        self.copy = room[start : start + self.bytes]
        self.copy.copy_(self.original)

    @property
    def extent(self) -> _Extent:
        return _Extent(self.copy.data_ptr(), self.copy.data_ptr() + self.bytes)

    def write_back(self) -> None:
        self.original.copy_(self.copy)


def emulate(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[Argument],
    *,
    seed: int = 0,
    check_races: bool = False,
) -> None:
    """Run `kernel` over `grid` blocks on the CPU.

    `args` are the entry's parameters in order, as for impl.cuda.launch.launch, but CPU tensors. `seed` orders
    blocks and threads. Raises EmulatedFault at the first fault, BuildError when g++ refuses the source, TypeError
    when `args` do not match the entry's parameters.
    """
    library = compile_kernel(kernel)
    loaded = _load(library.path)
    storages: dict[int, _GuardedStorage] = {}
    values = [_value(argument, storages) for argument in args]
    _check_signature(kernel, loaded, values)
    extents = [storage.extent for storage in storages.values()]
    shared = [*library.shared_arrays, (library.dynamic_offset, kernel.dynamic_shared_bytes)]
    launch = _Launch(
        grid=grid,
        block=(kernel.threads, 1, 1),
        parameters=(ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)),
        allocations=(_Extent * len(extents))(*extents),
        allocation_count=len(extents),
        shared_arrays=(_SharedArray * len(shared))(*(_SharedArray(*array) for array in sorted(shared))),
        shared_array_count=len(shared),
        shared_symbol_offset=library.dynamic_offset,
        seed=seed,
        workers=min(len(os.sched_getaffinity(0)), int(np.prod(grid))),
        check_races=check_races,
        check_uninitialized=True,
    )
    loaded.emulated_run(ctypes.byref(launch))
    for storage in storages.values():
        storage.write_back()
    if launch.fault.found:
        raise EmulatedFault(_describe(kernel, library, launch.fault))


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    loaded.emulated_run.restype = None
    return loaded


def _value(argument: Argument, storages: dict[int, _GuardedStorage]) -> ctypes.Array:
    """The argument's bytes; a tensor's are its address in the guarded copy of its storage."""
    if isinstance(argument, torch.Tensor):
        if argument.device.type != "cpu":
            raise TypeError(f"the emulator takes CPU tensors, not one on {argument.device}")
        storage = argument.untyped_storage()
        guarded = storages.setdefault(storage.data_ptr(), None) or _GuardedStorage(storage)
        storages[storage.data_ptr()] = guarded
        argument = np.uint64(guarded.copy.data_ptr() + argument.storage_offset() * argument.element_size())
    if not isinstance(argument, np.generic):
        raise TypeError(f"kernel arguments are tensors, numpy int32, int64 or float32, not {type(argument)}")
    return (ctypes.c_char * argument.nbytes).from_buffer_copy(argument.tobytes())


def _check_signature(kernel: Kernel, loaded: ctypes.CDLL, values: list[ctypes.Array]) -> None:
    wanted = [loaded.emulated_parameter_bytes(i) for i in range(loaded.emulated_parameter_count())]
    given = [len(value) for value in values]
    if given != wanted:
        raise TypeError(f"{kernel.name}: {kernel.entry} takes parameters of {wanted} bytes, not {given}")


def _describe(kernel: Kernel, library: Library, fault: _Fault) -> str:
    def place(match: re.Match) -> str:
        return _source_line(library.path, int(match.group(1), 16))

    message = re.sub(r"@([0-9a-f]+)", place, fault.message.decode(errors="replace"))
    block, thread = tuple(fault.block), tuple(fault.thread)
    return f"{kernel.name}: block {block}, thread {thread}, {_source_line(library.path, fault.code_offset)}: {message}"


def _source_line(library: Path, return_offset: int) -> str:
    """`file:line` of the call that returns to `return_offset`, then those it is inlined into."""
    command = ["addr2line", "-i", "-e", library, hex(return_offset - 1)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    places = [re.sub(r" \(discriminator \d+\)", "", Path(line).name) for line in lines if line]
    emulated = [place for place in places if not _is_shim(place)]
    return " from ".join(emulated or places)


def _is_shim(place: str) -> bool:
    return (Path(__file__).parent / "include" / place.rsplit(":", 1)[0]).is_file()
