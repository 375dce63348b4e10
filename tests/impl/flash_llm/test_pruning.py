"""Magnitude pruning against sorting, and the statistics of tiles against counting."""

from __future__ import annotations

import pytest
import torch

from impl.flash_llm import pruning
from impl.flash_llm.pruning import prune_, tile_statistics
from tests.impl.flash_llm.matrices import bits, random_sparse
from tests.memory import peak_bytes


def pruned_by_sorting(w, sparsity):
    """The same by a stable sort of all magnitudes."""
    flat = w.flatten().clone()
    magnitude = flat.abs().float().nan_to_num(nan=torch.inf, posinf=1e38)
    order = magnitude.sort(stable=True).indices
    flat[order[: round(sparsity * w.numel())]] = 0
    return flat.view(w.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.8, 0.999, 1.0])
def test_prunes_the_least_and_exactly_so_many(sparsity, dtype):
    w = torch.randn(130, 77).to(dtype)
    zeros = int((w == 0).sum())  # about once in a thousand runs a normal number is zero
    expected = pruned_by_sorting(w, sparsity)
    assert prune_(w, sparsity) is w
    assert torch.equal(w, expected)
    assert (w == 0).sum() == max(round(sparsity * w.numel()), zeros)


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.7])
def test_of_equal_magnitudes_the_first_go(sparsity):
    w = torch.randint(-2, 3, (100, 77)).half()
    expected = pruned_by_sorting(w, sparsity)
    assert torch.equal(prune_(w, sparsity), expected)
    ones = prune_(torch.full((100, 77), -1.0).half(), sparsity).flatten()
    assert not ones[: round(sparsity * 7700)].any()
    assert ones[round(sparsity * 7700) :].all()


@pytest.mark.parametrize("sparsity", [0.01, 0.5, 0.8])
def test_a_sample_that_misleads_costs_time_only(sparsity, monkeypatch):
    """Every element that is looked at is small, or large, and no other."""
    monkeypatch.setattr(pruning, "_SAMPLE", 64)
    for of_sample in (1e-3, 1e3):
        w = torch.randn(64, 128).half()
        w[:, ::128] = of_sample
        expected = pruned_by_sorting(w, sparsity)
        assert torch.equal(prune_(w, sparsity), expected)


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.8, 1.0])
def test_slab_by_slab(sparsity, monkeypatch):
    """Ties in several slabs, of which the last one is not whole."""
    monkeypatch.setattr(pruning, "_SLAB", 1000)
    for w in (torch.randint(-3, 4, (91, 77)).half(), torch.randn(91, 77).half()):
        expected = pruned_by_sorting(w, sparsity)
        assert torch.equal(prune_(w, sparsity), expected)


def test_takes_memory_for_a_slab(monkeypatch):
    monkeypatch.setattr(pruning, "_SLAB", 1 << 12)
    monkeypatch.setattr(pruning, "_SAMPLE", 1 << 10)
    w = torch.randn(512, 1024).half()
    assert peak_bytes(lambda: prune_(w, 0.8)) < 1 << 16
    assert peak_bytes(lambda: (w == 0).sum()) > 8 * w.numel()  # what would be seen otherwise


def test_special_values_are_the_largest_and_zeros_the_least():
    w = torch.tensor([[torch.nan, -torch.inf, 65504.0, 2.0**-24, -0.0, 0.0, 1.0, -2.0]]).half()
    assert bits(prune_(w.clone(), 0.25)).tolist()[0][4:6] == [0, 0]
    left = prune_(w.clone(), 0.75)
    assert left[0, :2].isnan().tolist() == [True, False]
    assert left[0, 1] == -torch.inf
    assert not left[0, 2:].any()


def test_what_is_refused():
    with pytest.raises(TypeError, match="float32"):
        prune_(torch.randn(4, 4), 0.5)
    with pytest.raises(TypeError, match="contiguous"):
        prune_(torch.randn(4, 6).half().T, 0.5)
    with pytest.raises(ValueError, match=r"sparsity must be in \[0, 1\], not 1.5"):
        prune_(torch.randn(4, 4).half(), 1.5)


@pytest.mark.parametrize("shape", [(128, 64), (256, 192), (130, 100), (1, 1)])
def test_statistics_by_counting(shape):
    w = random_sparse(*shape, 0.3)
    densities = torch.tensor(
        [
            (tile != 0).double().mean()
            for strip in w.split(128)
            for tile in strip.split(64, dim=1)
        ],
        dtype=torch.float64,
    )  # fmt: skip
    found = tile_statistics(w)
    assert found.densest == pytest.approx(densities.max().item(), abs=1e-6)
    assert found.variance == pytest.approx(densities.var(unbiased=False).item(), abs=1e-9)


def test_statistics_tell_clustered_from_random():
    random, clustered = random_sparse(1024, 1024, 0.5), torch.ones(1024, 1024).half()
    clustered[:, :512] = 0
    assert tile_statistics(random).variance == pytest.approx(0.25 / (128 * 64), rel=0.5)
    assert tile_statistics(clustered).variance == 0.25
    assert tile_statistics(clustered).densest == pytest.approx(1, abs=1e-3)


@pytest.mark.gpu
def test_a_gpu_prunes_the_same_in_bounded_memory():
    w = torch.randint(-300, 300, (49152, 12288), dtype=torch.int16, device="cuda").half()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    part = w[:1000].cpu()
    assert torch.equal(prune_(w[:1000].clone(), 0.7).cpu(), prune_(part, 0.7))
    prune_(w, 0.8)
    assert torch.cuda.max_memory_allocated() - before < 4 * w.numel()
    assert sum(int(strip.count_nonzero()) for strip in w.split(4096)) == w.numel() - round(0.8 * w.numel())
