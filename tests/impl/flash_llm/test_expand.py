"""Expansion on a GPU, and emulated, gives what the conversion's inverse gives, bit for bit."""

from __future__ import annotations

import pytest
import torch

from impl.cuda import emulator
from impl.flash_llm.kernels.expand import expand
from tests.impl.flash_llm.conftest import launcher
from tests.impl.flash_llm.matrices import bits, random_sparse


@pytest.fixture(params=["emulated", pytest.param("kernel", marks=pytest.mark.gpu)])
def expanded(request, kind):
    """`expanded(w)` gives w compressed and expanded again, on the CPU."""
    launch, device = launcher(request.param)

    def run(w):
        weight = kind.from_dense(w.to(device))
        return expand(kind.name, weight.data, weight.offsets, weight.shape, weight.longest, launch).cpu()

    return run


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (129, 64), (31, 257), (128, 262), (160, 520)])
def test_every_density_and_edge(expanded, shape, density):
    w = random_sparse(*shape, density)
    assert torch.equal(expanded(w), w)


def test_every_value(expanded):
    w = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).view(256, 256)
    expected = bits(w).clone()
    expected[expected == -(2**15)] = 0  # -0.0
    assert torch.equal(bits(expanded(w)), expected)


@pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
def test_bank_conflicts(kind):
    """Of the scatter of Tiled-CSL, and of the format two of four, whose lanes walk down words of their own."""
    weight, counts = kind.from_dense(random_sparse(128, 256, 0.2)), []
    parts = (weight.data, weight.offsets, weight.shape, weight.longest)
    expand(kind.name, *parts, lambda *call: counts.extend(emulator.count(*call)))
    conflicts = {(c.instruction, c.bytes) for c in counts if c.wavefronts > c.ideal_wavefronts}
    expected = {
        "tiled_csl": {("st.shared", 2)},
        "two_of_four": {("st.shared", 2), ("ld.shared", 2), ("ld.shared", 4), ("ld.shared", 8)},
    }
    assert conflicts <= expected.get(kind.name, set())
