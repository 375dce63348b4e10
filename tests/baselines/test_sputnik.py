"""The Sputnik-style kernel with every width of vector, emulated and on a GPU; SparTA's decomposition."""

from __future__ import annotations

import functools

import pytest
import torch

from baselines.spmm._sputnik import MAX_K, SputnikMatrix, multiply, shapes
from baselines.spmm.sparta import two_of_four
from harness.contender import Target, discover
from harness.ops.spmm import SpMMParams
from impl.cuda import emulator
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse

HOPPER = Target("cuda", "H200", (9, 0))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cpu" and (reason := emulator.available()):
        pytest.skip(reason)
    return request.param


def _product(w, x, shape, device, y=None):
    if device == "cuda":
        from impl.cuda.launch import launch
    else:
        launch = functools.partial(emulator.launch, check_races=True)
    accumulate = y is not None
    y = (y if accumulate else torch.full((len(w), x.shape[1]), torch.nan).half()).to(device)
    multiply(SputnikMatrix.from_dense(w.to(device)), x.to(device), y, shape, launch, accumulate)
    return y.cpu()


@pytest.mark.parametrize(("n", "vector"), [(n, s.vector) for n in (1, 8, 16, 33, 40, 64, 72) for s in shapes(n)])
def test_every_width_and_vector(n, vector, device):
    """Rows of every length and alignment, among them empty ones and a full one."""
    w, x = random_sparse(67, 150, 0.2), torch.randn(150, n).half()
    w[3], w[5], w[64] = 0, 1, 0
    shape = next(s for s in shapes(n) if s.vector == vector)
    assert_is_product(_product(w, x, shape, device), w, x)


def test_adds_to_what_is_there(device):
    w, x, y = random_sparse(40, 64, 0.3), torch.randn(64, 8).half(), torch.randn(40, 8).half()
    total, identity = torch.cat([w, torch.eye(40).half()], 1), torch.cat([x, y])
    assert_is_product(_product(w, x, shapes(8)[0], device, y.clone()), total, identity)


def test_columns_beyond_sixteen_bits_are_refused(device):
    w, x = torch.zeros(1, MAX_K).half(), torch.randn(MAX_K, 1).half()
    w[0, -1] = 1
    assert torch.equal(_product(w, x, shapes(1)[0], device), x[-1:])
    with pytest.raises(ValueError, match="16-bit signed column ids address 32768 columns, not 32770"):
        SputnikMatrix.from_dense(torch.zeros(1, 32770).half())
    params = SpMMParams(m=64, n=8, k=36864, sparsity=0.8)
    for name in ("sputnik", "sparta"):
        assert "16-bit" in discover()["spmm"][name].unsupported(params, HOPPER)


def test_two_of_four_and_the_rest_are_the_matrix():
    w = random_sparse(64, 96, 0.6)
    structured = two_of_four(w)
    assert (structured.unflatten(1, (-1, 4)) != 0).sum(2).max() <= 2
    assert ((structured == 0) | (structured == w)).all()
    assert torch.equal(structured + (w - structured), w)
    assert (w - structured).count_nonzero() == ((w.unflatten(1, (-1, 4)) != 0).sum(2) - 2).clamp(min=0).sum()
