"""Patterns against values worked out by hand, and the monitor against numpy."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from impl.cuda import emulator
from impl.sparse_training.kernels.map_statistics import map_statistics
from impl.sparse_training.pattern import (
    LearnedPattern,
    TransitionMonitor,
    flood_fill,
    largest_blocks,
    pool,
    skewness_of,
    spion_pattern,
    statistics,
)
from tests.impl.sparse_training.blocks import emulated


def test_largest_blocks_by_score_and_ties_by_place():
    scores = torch.tensor([[1.0, 5.0, 5.0], [5.0, 2.0, 9.0], [0.0, 5.0, 3.0]])
    assert largest_blocks(scores, 4 / 9).nonzero().tolist() == [[0, 1], [0, 2], [1, 0], [1, 2]]
    assert largest_blocks(scores, 0.1).sum() == 0
    assert largest_blocks(scores, 1.0).all()


def test_the_diagonal_can_be_kept():
    scores = torch.arange(16.0).view(4, 4)
    kept = largest_blocks(scores, 6 / 16, keep_diagonal=True)
    assert kept.diagonal().all()
    assert kept.sum() == 6
    assert kept[3, 2]
    assert largest_blocks(scores, 0.0, keep_diagonal=True).equal(torch.eye(4, dtype=torch.bool))


def test_bad_densities_and_scores():
    with pytest.raises(ValueError, match=r"density must be 0 to 1, not 1.5"):
        largest_blocks(torch.zeros(2, 2), 1.5)
    with pytest.raises(ValueError, match=r"NaN or infinity"):
        largest_blocks(torch.full((2, 2), math.nan), 0.5)


def test_pool_averages_edge_blocks_over_what_they_have():
    values = torch.rand(7, 7)
    pooled = pool(values, 3)
    assert pooled.shape == (3, 3)
    torch.testing.assert_close(pooled[1, 2], values[3:6, 6:].mean())
    torch.testing.assert_close(pooled[2, 2], values[6, 6])


def test_the_learned_pattern_learns_the_pooled_map_and_nothing_else():
    torch.manual_seed(0)
    pattern, pooled = LearnedPattern(8), torch.rand(8, 8, requires_grad=True)
    assert pattern.weight.min() >= 0
    assert pattern.weight.max() <= 1
    torch.testing.assert_close(pattern(), pattern().T)
    target = pooled.detach() @ pooled.detach().T / 8
    optimizer = torch.optim.Adam(pattern.parameters(), 0.02)
    first = pattern.loss(target).item()
    for _ in range(300):
        optimizer.zero_grad()
        pattern.loss(target).backward()
        optimizer.step()
    assert pattern.loss(target).item() < first / 1000
    pattern.loss(pooled).backward()
    assert pooled.grad is None


def test_flood_fill_follows_the_largest_neighbour():
    pooled = torch.tensor([[9.0, 1, 1, 1], [1, 8, 1, 1], [1, 7, 1, 1], [1, 1, 6, 1]])
    kept = flood_fill(pooled, alpha=0.7)
    expected = torch.eye(4, dtype=torch.bool)
    expected[[1, 2, 3], [1, 1, 2]] = True
    assert kept.equal(expected)


@pytest.mark.parametrize("variant", ["C", "F", "CF"])
def test_spion_keeps_the_diagonal_and_a_bright_band(variant):
    size, block = 128, 16
    attention = torch.full((size, size), 1e-3)
    place = torch.arange(size - 48)
    attention[place + 48, place] = 1.0  # three blocks below the diagonal
    kept = spion_pattern(attention, block, variant, density=0.25, alpha=0.8)
    assert kept.diagonal().all()
    assert kept.diagonal(-3)[1:-1].all()
    assert kept.sum() < 24


def by_kernel(maps, before):
    return map_statistics(maps, before, launch=functools.partial(emulator.launch, check_races=True))


@pytest.mark.parametrize(
    "way", ["plain", pytest.param("emulated", marks=emulated), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("size", [40, 65, 300])
def test_statistics_are_those_of_the_population(way, size):
    torch.manual_seed(size)
    maps, before = (torch.rand(3, size, size).pow(8).log_softmax(-1).exp() for _ in range(2))
    maps[1] = maps[1] ** 2  # whose rows do not sum to 1
    maps[2] = 0.5
    x, y = maps.double().numpy(), before.double().numpy()
    skewness = [(((m - m.mean()) / m.std()) ** 3).mean() for m in x[:2]]
    device = "cuda" if way == "cuda" else "cpu"
    own, kept = maps.to(device), before.to(device)
    found, distance = (by_kernel if way == "emulated" else statistics)(own, kept)
    np.testing.assert_allclose(found[:2].cpu().numpy(), skewness, rtol=2e-4)
    assert found[2] == 0
    np.testing.assert_allclose(distance.cpu().numpy(), np.sqrt(((x - y) ** 2).sum((1, 2))), rtol=1e-5)
    assert torch.equal(kept.cpu(), maps)


def test_skewness_is_0_for_a_constant():
    assert skewness_of(torch.ones(3, 3)) == 0


def test_the_transition_needs_both_tests_in_all_layers_on_one_step():
    torch.manual_seed(1)
    skewed = torch.rand(2, 32, 32).pow(12)
    assert all(skewness_of(layer) > 1.7 for layer in skewed)
    monitor = TransitionMonitor(layers=2, size=32)
    step = torch.full_like(skewed, 0.01)
    readings = [monitor(skewed + step * i) for i in range(3)]
    assert [bool(r.settled) for r in readings] == [False, False, True]
    torch.testing.assert_close(readings[2].distance, torch.full((2,), 0.01 * 32), rtol=1e-3, atol=0)
    jump = skewed + step * 3
    jump[1] += 0.5  # one layer moves on
    assert not monitor(jump).settled

    still = TransitionMonitor(layers=2, size=32)  # a distance of 0 is none to compare with
    assert not any(bool(still(m).settled) for m in (skewed, skewed, skewed, skewed + step, skewed + step))

    flat = TransitionMonitor(layers=2, size=32)
    even = torch.rand(2, 32, 32)
    assert not any(bool(flat(even + step * i).settled) for i in range(3))  # settled, not skewed


def test_the_monitor_goes_on_from_its_state():
    torch.manual_seed(2)
    maps = [torch.rand(1, 16, 16).pow(12) for _ in range(4)]
    whole, half = TransitionMonitor(1, 16), TransitionMonitor(1, 16)
    for m in maps[:2]:
        whole(m), half(m)
    resumed = TransitionMonitor(1, 16)
    resumed.load_state_dict(half.state_dict())
    for m in maps[2:]:
        for a, b in zip(vars(whole(m)).values(), vars(resumed(m)).values(), strict=True):
            assert torch.equal(a, b)
    assert np.isfinite(whole.distance.item())
