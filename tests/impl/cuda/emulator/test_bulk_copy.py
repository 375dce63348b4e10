"""Copies of adjacent bytes by the copy engine, on the emulator and on a GPU, and faults that the emulator finds."""

from __future__ import annotations

import pytest
import torch

from impl.cuda import emulator
from impl.cuda.emulator import EmulatedFault

_SOUND = {"LOAD": "bulk_load", "LOADED": "mbarrier_wait(&barrier, 0)", "OFFSET": "0", "OVERWRITE": "bulk_wait_read()"}


def _run(launch, test_kernel, **steps: str):
    kernel = test_kernel("bulk_copy.cu", "copy", 32, "sm_90a", **_SOUND | steps)
    addends, sums, copies = torch.randn(64), torch.randn(64), torch.full((64,), torch.nan)
    expected = sums + addends
    launch(kernel, (1, 1, 1), [addends, sums, copies])
    return (copies, addends), (sums, expected)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs a Hopper GPU"
)
@pytest.mark.parametrize("load", ["bulk_load", "bulk_load_once"])
def test_load_store_and_add(launch, test_kernel, load):
    for got, expected in _run(launch, test_kernel, LOAD=load):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("step", "instead", "message"),
    [
        ("LOADED", "", "where an asynchronous copy has not been waited for"),
        ("LOADED", "mbarrier_wait(&barrier, 1)", "where an asynchronous copy has not been waited for"),
        ("OFFSET", "2", "must be multiples of 16"),
        ("OFFSET", "4", "outside shared memory"),
    ],
)
def test_fault_is_found(test_kernel, step, instead, message):
    with pytest.raises(EmulatedFault, match=message):
        _run(emulator.launch, test_kernel, **{step: instead})


def test_bytes_are_read_as_late_as_the_wait(test_kernel):
    (copies, _), (sums, expected) = _run(emulator.launch, test_kernel, OVERWRITE="buffer[5] = 1e9f")
    assert copies[5] == 1e9
    assert not torch.equal(sums, expected)
