"""The kernels themselves on a CPU: the sources that NVRTC compiles, compiled by g++ and run thread by thread."""

from __future__ import annotations

from impl.cuda.emulator.compile import available
from impl.cuda.emulator.run import Count, EmulatedFault, count, launch

__all__ = ["Count", "EmulatedFault", "available", "count", "launch"]
