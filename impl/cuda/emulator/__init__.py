"""The kernels themselves on a CPU: the sources that NVRTC compiles, compiled by g++ and run thread by thread."""

from __future__ import annotations

from impl.cuda.emulator.compile import available
from impl.cuda.emulator.run import EmulatedFault, emulate

launch = emulate

__all__ = ["EmulatedFault", "available", "emulate", "launch"]
