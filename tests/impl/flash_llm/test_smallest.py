"""The smallest products that run every kernel: what compute-sanitizer goes over (tests/impl/test_sanitizer.py)."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import FORMATS
from impl.flash_llm.kernels import KERNELS, Problem, choose_plan, has_kernel
from impl.flash_llm.kernels.expand import EXPAND
from tests.impl.flash_llm.devices import H200
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse

# m, n and density: blocks of 4 warps, then of 8, which a planner takes where no more of the smaller ones fit.
SMALLEST = [*((40, n, 0.3) for n in (8, 16, 32, 64)), (130, 8, 0.5), (130, 16, 0.45), (130, 32, 0.3), (130, 64, 0.9)]


def operands(kind, m, n, density):
    """Of two parts of k, the second with an edge."""
    k = kind.tile[1] + 5
    return random_sparse(m, k, density), torch.randn(k, n).half()


@pytest.mark.parametrize("shape", SMALLEST)
def test_smallest(multiply, kind, shape):
    w, x = operands(kind, *shape)
    assert_is_product(multiply(w, x, 2), w, x)


def test_the_smallest_run_every_kernel():
    """Expansion has tests of its own."""
    ran = {kernel.name for kernel in EXPAND.values()}
    for kind in FORMATS.values():
        for shape in SMALLEST:
            w, x = operands(kind, *shape)
            weight = kind.from_dense(w)
            problem = Problem(*shape[:2], len(x), weight.nbytes, weight.longest)
            for capability in ((7, 0), (8, 0), (9, 0)):
                device = dataclasses.replace(H200, capability=capability)
                if has_kernel(weight.name, device):
                    ran |= {kernel.name for kernel in choose_plan(weight.name, problem, device, 2).kernels}
    assert ran == {kernel.name for kernel in KERNELS}
