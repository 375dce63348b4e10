"""The structures of runtime/launch.h."""

from __future__ import annotations

import ctypes


class Extent(ctypes.Structure):
    _fields_ = (("low", ctypes.c_size_t), ("high", ctypes.c_size_t))


class SharedArray(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Fault(ctypes.Structure):
    _fields_ = (
        ("found", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("code_offset", ctypes.c_uint64),
        ("message", ctypes.c_char * 1024),
    )


class CounterRow(ctypes.Structure):
    _fields_ = (
        ("code_offset", ctypes.c_uint64),
        ("instruction", ctypes.c_char_p),
        ("bytes", ctypes.c_uint64),
        ("instructions", ctypes.c_uint64),
        ("wavefronts", ctypes.c_uint64),
        ("ideal_wavefronts", ctypes.c_uint64),
        ("sectors", ctypes.c_uint64),
        ("ideal_sectors", ctypes.c_uint64),
    )


ReportCounter = ctypes.CFUNCTYPE(None, ctypes.POINTER(CounterRow))


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("allocations", ctypes.POINTER(Extent)),
        ("allocation_count", ctypes.c_int),
        ("shared_arrays", ctypes.POINTER(SharedArray)),
        ("shared_array_count", ctypes.c_int),
        ("shared_symbol_offset", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("workers", ctypes.c_int),
        ("check_races", ctypes.c_int),
        ("report_counter", ReportCounter),
        ("fault", Fault),
    )
