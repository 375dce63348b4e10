"""The two ways to run a test kernel, which must agree: on the emulator, and on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from impl.cuda import emulator
from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="session", autouse=True)
def _needs_compiler() -> None:
    if reason := emulator.available():
        pytest.skip(reason)


@pytest.fixture
def test_kernel() -> Callable[..., Kernel]:
    """`test_kernel(file, entry, threads, arch="sm_80", dynamic_shared_bytes=0, **macros)` describes a test kernel."""

    def describe(
        file: str, entry: str, threads: int, arch: str = "sm_80", dynamic_shared_bytes: int = 0, **macros: str | int
    ) -> Kernel:
        return Kernel(
            file.removesuffix(".cu"),
            KERNELS / file,
            entry,
            arch,
            tuple(macros.items()),
            threads,
            dynamic_shared_bytes,
            255,
            1,
        )

    return describe


@pytest.fixture(params=["emulated", pytest.param("kernel", marks=pytest.mark.gpu)])
def launch(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Launches a kernel with CPU tensors, on the CPU or on a GPU and back."""
    if request.param == "emulated":
        return emulator.launch
    from impl.cuda.launch import launch

    def run(kernel: Kernel, grid: tuple[int, int, int], args: Sequence) -> None:
        moved = [_to_gpu(arg) for arg in args]
        launch(kernel, grid, moved)
        for arg, there in zip(args, moved, strict=True):
            if isinstance(arg, torch.Tensor):
                arg.copy_(there)

    return run


def _to_gpu(argument):
    if isinstance(argument, TensorMap):
        return dataclasses.replace(argument, tensor=argument.tensor.cuda())
    return argument.cuda() if isinstance(argument, torch.Tensor) else argument
