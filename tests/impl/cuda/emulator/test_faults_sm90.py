"""Faults in the use of the copy engine, mbarriers and wgmma, planted in a test kernel, are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from impl.cuda.build import Kernel
from impl.cuda.emulator import EmulatedFault, launch
from impl.cuda.tensor_map import TensorMap

_SOURCE = Path(__file__).parent / "kernels" / "faulty_sm90.cu"
_SOUND = {
    "INIT": "mbarrier_init(&barrier, 1)",
    "EXPECT": "mbarrier_arrive_expect(&barrier, kTileBytes)",
    "LOAD": "tma_load(tile, &map, &barrier, 0, 0, 0, 0)",
    "WAIT": "mbarrier_wait(&barrier, 0)",
    "FENCE": "wgmma_fence()",
    "MULTIPLY": "wgmma_shared_f16(d, step, step, k > 0)",
    "FINISH": "wgmma_wait<0>()",
}
_IN_FLIGHT = "where an asynchronous copy has not been waited for"
_NEVER_COMES = "at an mbarrier"

# name: the step that is wrong, what it is instead, part of the message
_FAULTS = {
    "tile not waited for": ("WAIT", "", _IN_FLIGHT),
    "tile of the next phase waited for": ("WAIT", "mbarrier_wait(&barrier, 1)", _IN_FLIGHT),
    "tile asked for again while in use": (
        "WAIT",
        "mbarrier_wait(&barrier, 0); if (thread == 0) tma_load(tile, &map, &barrier, 0, 0, 0, 0)",
        "at shared byte",
    ),
    "more bytes expected than come": ("EXPECT", "mbarrier_arrive_expect(&barrier, 2 * kTileBytes)", _NEVER_COMES),
    "fewer bytes expected than come": ("EXPECT", "mbarrier_arrive_expect(&barrier, kTileBytes / 2)", _NEVER_COMES),
    "arrival missing": ("INIT", "mbarrier_init(&barrier, 2)", _NEVER_COMES),
    "barrier not initialised": ("INIT", "", "has not been initialised"),
    "tile off the pattern": (
        "LOAD",
        "tma_load(tile + 128, &map, &barrier, 0, 0, 0, 0)",
        "must lie at a multiple of 1024",
    ),
    "tile past the end": ("LOAD", "tma_load(tile + 8192, &map, &barrier, 0, 0, 0, 0)", "outside shared memory"),
    "no fence": ("FENCE", "", "without a wgmma_fence()"),
    "operand past the end": (
        "MULTIPLY",
        "wgmma_shared_f16(d, step, advance_descriptor(step, 8192), k > 0)",
        "outside shared memory",
    ),
    "operands that differ in a warp": (
        "MULTIPLY",
        "wgmma_shared_f16(d, step, advance_descriptor(step, thread % 2 * 1024), k > 0)",
        "different descriptors",
    ),
    "no swizzle": ("MULTIPLY", "wgmma_shared_f16(d, step, step ^ (1ull << 62), k > 0)", "K-major operand of wgmma"),
}


def _run(**steps: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The product as the warpgroup's threads hold it, and as it should be."""
    macros = tuple((_SOUND | steps).items())
    kernel = Kernel("faulty_sm90", _SOURCE, "faulty", "sm_90a", macros, 128, 64 * 128, 255, 1)
    a, y = torch.randint(-2, 3, (64, 64)).half(), torch.full((4, 8, 4, 8, 2, 2), torch.nan)
    launch(kernel, (1, 1, 1), [TensorMap(a[None, None], 64), y], check_races=True)
    # (warp, row, pair, tile, half, column) of D: PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16".
    return y.permute(0, 4, 1, 3, 2, 5).reshape(64, 64), a.float() @ a.float().T


def test_a_sound_kernel_runs():
    product, expected = _run()
    assert torch.equal(product, expected)


@pytest.mark.parametrize("name", _FAULTS)
def test_fault_is_found(name):
    step, instead, message = _FAULTS[name]
    with pytest.raises(EmulatedFault, match="faulty_sm90") as caught:
        _run(**{step: instead})
    assert message in str(caught.value)


def test_accumulators_are_nan_until_waited_for():
    product, _ = _run(FINISH="")
    assert product.isnan().all()


def test_operands_are_read_as_late_as_the_wait():
    overwrite = "if (thread == 0) *reinterpret_cast<volatile unsigned short*>(tile) = 0x7e00; __syncthreads()"
    product, _ = _run(FINISH=f"{overwrite}; wgmma_wait<0>()")
    assert product[0].isnan().all()
    assert product[:, 0].isnan().all()
    assert not product[1:, 1:].isnan().any()
