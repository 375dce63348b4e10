"""What a contender of ours says of its kernels: where they run, what they were compiled for, and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from impl.cuda import emulator
from impl.cuda.build import Kernel, build
from impl.cuda.emulator.compile import compile_kernel

NOT_TIMED = "emulated on a CPU: the result is checked, but an emulation's time says nothing about a kernel"


def kernel_fields(kernels: Sequence[Kernel], device: torch.device) -> dict[str, Any]:
    """Compile `kernels` for `device`; the fields of harness.contender.Prepared that say what runs there.

    A GPU runs them; a CPU emulates them, without times. Where neither is possible the backend is "reference", with
    a note that says why. The hash is that of the first kernel. Raises BuildError as `build` does.
    """
    if device.type == "cuda":
        from impl.cuda.launch import device_arch

        arch = device_arch(device.index)
        first, *_ = [build(kernel, arch).hash for kernel in kernels]
        return {"backend": "kernel", "kernel_arch": kernels[0].arch, "built_arch": arch, "kernel_hash": first}
    if reason := emulator.available():
        return {"backend": "reference", "note": f"the plain-torch reference instead of the kernel: {reason}"}
    first, *_ = [compile_kernel(kernel).hash for kernel in kernels]
    return {
        "backend": "emulated",
        "kernel_arch": kernels[0].arch,
        "built_arch": "cpu",
        "kernel_hash": first,
        "no_times": NOT_TIMED,
    }
