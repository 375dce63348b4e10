"""The smallest products that run every kernel: what compute-sanitizer goes over (tests/impl/test_sanitizer.py)."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import FORMATS
from impl.flash_llm.kernels import KERNELS, Problem, choose_plan, equal_shares, has_kernel
from impl.flash_llm.kernels.convert import CONVERT, MEASURE
from impl.flash_llm.kernels.expand import EXPAND
from tests.impl.flash_llm.conftest import launcher
from tests.impl.flash_llm.devices import H200, HOPPER
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse

# m, n and density: blocks of 2 or 4 warps, then of 8, which a planner takes where no more of the smaller ones fit.
SMALLEST = [
    *((m, n, 0.3) for m in (40, 70) for n in (8, 16, 32, 64)),
    *((130, 8, 0.5), (130, 16, 0.45), (130, 32, 0.3), (130, 64, 0.3), (130, 64, 0.9)),
]
EQUAL_SHARES = [
    (blocks, tile_n, kernel)
    for blocks, widths in equal_shares.SPMM.items()
    for tile_n, kernels in widths.items()
    for kernel in kernels
]


def operands(kind, m, n, density):
    """Of two parts of k, the second with an edge."""
    k = kind.tile[1] + 5
    return random_sparse(m, k, density), torch.randn(k, n).half()


@pytest.mark.parametrize("shape", SMALLEST)
def test_smallest(multiply, kind, shape):
    w, x = operands(kind, *shape)
    assert_is_product(multiply(w, x, 2), w, x)


@pytest.mark.parametrize(("blocks", "tile_n", "kernel"), EQUAL_SHARES, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("how", ["emulated", pytest.param("kernel", marks=pytest.mark.gpu)])
def test_smallest_of_each_size_of_block(how, blocks, tile_n, kernel):
    """Of sm_90a: which one a planner takes depends on the shape."""
    if how == "kernel" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for sm_90a alone")
    launch, device = launcher(how)
    w, x = operands(FORMATS[blocks.kind], 130, tile_n, 0.1)  # the longest block must leave room
    weight = FORMATS[blocks.kind].from_dense(w.to(device))
    problem = Problem(130, tile_n, len(x), weight.nbytes, weight.longest)
    plan = equal_shares.plan_by(kernel, blocks, tile_n, problem, HOPPER, 2)
    assert_is_product(plan.multiply(weight.data, weight.offsets, x.to(device), 130, launch).cpu(), w, x)


def test_the_smallest_run_every_kernel():
    """Expansion and conversion have tests of their own."""
    ran = {kernel.name for kernel in (*EXPAND.values(), MEASURE, CONVERT)}
    ran |= {kernel.name for *_, kernel in EQUAL_SHARES}
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
