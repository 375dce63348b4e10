"""Run a compiled kernel over a grid on the CPU, each buffer between guard zones, and say what went wrong."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from impl.cuda.build import Kernel
from impl.cuda.emulator import abi
from impl.cuda.emulator.compile import Library, compile_kernel, debugging
from impl.cuda.emulator.symbols import source_lines
from impl.cuda.report import LIMITS
from impl.cuda.tensor_map import MAP_BYTES, TensorMap, aligned_buffer

Argument = torch.Tensor | TensorMap | np.int32 | np.int64 | np.float32

_GUARD_BYTES = 4096
_ALIGNMENT = 512  # of cudaMalloc
_WHOLE_BYTES = 2**30


class EmulatedFault(RuntimeError):
    """A kernel did what hardware does not define. The message names kernel, block, thread and source line."""


@dataclass(frozen=True)
class Count:
    """Instructions of one kind at one source line, over a whole launch.

    `instructions` are warp instructions; `bytes` per lane is 0 for those that access no memory. `wavefronts` are
    those of shared memory, `ideal_wavefronts` without bank conflicts; `sectors` are the 32-byte ones of global
    memory, `ideal_sectors` if the lanes' bytes were adjacent.
    """

    instruction: str
    line: str
    bytes: int
    instructions: int
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int


def launch(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[Argument],
    *,
    seed: int = 0,
    check_races: bool = False,
) -> None:
    """Run `kernel` over `grid` blocks on the CPU; takes the place of impl.cuda.launch.launch.

    `args` are the entry's parameters in order: CPU tensors, maps of them and numpy scalars. `seed` orders blocks and
    threads. `check_races` also looks for shared bytes that two threads touch without a barrier between them, one
    writing.
    Raises EmulatedFault at the first fault, BuildError when g++ is missing or refuses the source, TypeError when
    `args` do not fit the entry's parameters, ValueError when a block of the kernel's architecture has less shared
    memory than it wants.
    """
    _run(kernel, grid, args, seed, check_races, abi.ReportCounter())


def count(kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Argument]) -> list[Count]:
    """Run `kernel` as `launch` does and count its instructions and memory traffic, by instruction and source line."""
    totals: dict[tuple, np.ndarray] = defaultdict(lambda: np.zeros(5, dtype=np.int64))

    @abi.ReportCounter
    def report(row: ctypes.POINTER(abi.CounterRow)) -> None:
        row = row.contents
        key = (row.instruction.decode(), row.code_offset, row.bytes)
        totals[key] += [row.instructions, row.wavefronts, row.ideal_wavefronts, row.sectors, row.ideal_sectors]

    _run(kernel, grid, args, 0, False, report)
    lines = source_lines(compile_kernel(kernel).path, (offset for _, offset, _ in totals))
    by_line: dict[tuple, np.ndarray] = defaultdict(lambda: np.zeros(5, dtype=np.int64))
    for (instruction, offset, width), numbers in totals.items():
        by_line[instruction, lines[offset], width] += numbers
    return [Count(*key, *map(int, numbers)) for key, numbers in sorted(by_line.items())]


def _run(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[Argument],
    seed: int,
    check_races: bool,
    report_counter: ctypes._CFuncPtr,
) -> None:
    library = compile_kernel(kernel)
    _check_shared_bytes(kernel, library)
    loaded = _load(library.path)
    buffers: dict[int, _GuardedBuffer] = {}
    values = [_value(argument, buffers) for argument in args]
    _check_signature(kernel, loaded, [len(value) for value in values])
    extents = [buffer.extent for buffer in buffers.values()]
    shared = sorted([*library.shared_arrays, (library.dynamic_offset, kernel.dynamic_shared_bytes)])
    state = abi.Launch(
        grid=grid,
        block=(kernel.threads, 1, 1),
        parameters=(ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)),
        allocations=(abi.Extent * len(extents))(*extents),
        allocation_count=len(extents),
        shared_arrays=(abi.SharedArray * len(shared))(*shared),
        shared_array_count=len(shared),
        shared_symbol_offset=library.dynamic_offset,
        seed=seed,
        workers=1 if debugging() else min(torch.get_num_threads(), math.prod(grid)),
        check_races=check_races,
        report_counter=report_counter,
    )
    loaded.emulated_run(ctypes.byref(state))
    for buffer in buffers.values():
        buffer.write_back()
    if state.fault.found:
        raise EmulatedFault(_describe(kernel, library, state.fault))


class _GuardedBuffer:
    """A copy of a tensor's storage, with guard zones around it; write_back() brings it to the tensor.

    Of a storage of more than _WHOLE_BYTES, which a test of 64-bit offsets has, only the tensors' elements are copied,
    so that the pages between them take no memory; what a kernel writes there is neither found nor brought back.
    """

    def __init__(self, storage: torch.UntypedStorage):
        original = torch.empty(0, dtype=torch.uint8).set_(storage)
        size = len(original)
        # numpy's zeros, unlike torch's, take no page before it is touched
        room = torch.from_numpy(np.zeros(size + 2 * _GUARD_BYTES + _ALIGNMENT, dtype=np.uint8))
        start = _GUARD_BYTES + -(room.data_ptr() + _GUARD_BYTES) % _ALIGNMENT
        self._copy = room[start : start + size]
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the storage and of the copy
        self._is_whole = size <= _WHOLE_BYTES
        if self._is_whole:
            self._take(original, self._copy)
        self.address = self._copy.data_ptr()
        self.extent = (self.address, self.address + size)

    def add(self, tensor: torch.Tensor) -> int:
        """Its address in the copy."""
        if not self._is_whole:
            elements = [slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride()]
            tensor = tensor.detach()[tuple(elements)]
            size = tensor.element_size()
            whole = self._copy[: len(self._copy) // size * size].view(tensor.dtype)
            offset = whole.storage_offset() + tensor.storage_offset()
            self._take(tensor, whole.as_strided(tensor.shape, tensor.stride(), offset))
        return self.address + tensor.storage_offset() * tensor.element_size()

    def _take(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        copy.copy_(original)
        self._pairs.append((original, copy))

    def write_back(self) -> None:
        for original, copy in self._pairs:
            original.copy_(copy)


def _value(argument: Argument, buffers: dict[int, _GuardedBuffer]) -> ctypes.Array:
    """The argument's bytes; a tensor's are its address in the guarded copy of its storage."""
    if isinstance(argument, TensorMap):  # the words are as in runtime/mbarriers.cpp
        address = _guarded_address(argument.tensor, buffers)
        words = [address, *argument.sizes, *argument.stride_bytes, argument.tile_rows, argument.tile_columns]
        return _parameter(np.array(words, dtype=np.uint64).tobytes().ljust(MAP_BYTES, b"\0"))
    if isinstance(argument, torch.Tensor):
        argument = np.uint64(_guarded_address(argument, buffers))
    if not isinstance(argument, np.generic):
        raise TypeError(f"kernel arguments are tensors, tensor maps, numpy int32, int64 or float32: {type(argument)}")
    return _parameter(argument.tobytes())


def _guarded_address(tensor: torch.Tensor, buffers: dict[int, _GuardedBuffer]) -> int:
    if tensor.device.type != "cpu":
        raise TypeError(f"the emulator takes CPU tensors, not one on {tensor.device}")
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in buffers:
        buffers[storage.data_ptr()] = _GuardedBuffer(storage)
    return buffers[storage.data_ptr()].add(tensor)


def _parameter(content: bytes) -> ctypes.Array:
    value = aligned_buffer(len(content))
    value.raw = content
    return value


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    loaded.emulated_run.restype = None
    return loaded


def _check_shared_bytes(kernel: Kernel, library: Library) -> None:
    limits = LIMITS[kernel.arch]
    most = limits.shared_bytes - limits.reserved_shared_bytes
    used = kernel.dynamic_shared_bytes + sum(size for _, size in library.shared_arrays)
    if used > most:
        raise ValueError(f"{kernel.name}: {used} bytes of shared memory; a block of {kernel.arch} has at most {most}")


def _check_signature(kernel: Kernel, loaded: ctypes.CDLL, given: list[int]) -> None:
    wanted = [loaded.emulated_parameter_bytes(i) for i in range(loaded.emulated_parameter_count())]
    if given != wanted:
        raise TypeError(f"{kernel.name}: {kernel.entry} takes parameters of {wanted} bytes, not {given}")


def _describe(kernel: Kernel, library: Library, fault: abi.Fault) -> str:
    """The fault's message, with a source line for each `@<code offset>` in it."""
    message = fault.message.decode(errors="replace")
    offsets = [int(offset, 16) for offset in re.findall(r"@([0-9a-f]+)", message)]
    lines = source_lines(library.path, [fault.code_offset, *offsets])
    message = re.sub(r"@([0-9a-f]+)", lambda match: lines[int(match.group(1), 16)], message)
    block, thread = tuple(fault.block), tuple(fault.thread)
    return f"{kernel.name}: block {block}, thread {thread}, {lines[fault.code_offset]}: {message}"
