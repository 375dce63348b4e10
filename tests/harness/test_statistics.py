from __future__ import annotations

import statistics as stdlib

import numpy as np
import pytest

from harness.statistics import geometric_mean, quartiles, ratio_by_rounds, relative_iqr


def test_quartiles_agree_with_the_standard_library() -> None:
    values = np.random.default_rng().lognormal(size=101).tolist()
    assert quartiles(values) == pytest.approx(stdlib.quantiles(values, n=4, method="inclusive"))


def test_relative_iqr_of_a_known_list() -> None:
    assert relative_iqr([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)


def test_geometric_mean_of_ratios_is_symmetric() -> None:
    ratios = np.random.default_rng().lognormal(size=20)
    assert geometric_mean(ratios) * geometric_mean(1 / ratios) == pytest.approx(1)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [2.0, -1.0]])
def test_geometric_mean_refuses_what_has_none(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(values)


def test_ratio_survives_a_drift_that_both_share() -> None:
    rng = np.random.default_rng()
    drift = {r: 1 + 0.3 * r for r in range(8)}
    baseline = {r: (3 * d * rng.normal(1, 0.001, 9)).tolist() for r, d in drift.items()}
    own = {r: (2 * d * rng.normal(1, 0.001, 5)).tolist() for r, d in drift.items()}
    ratio, low, high = ratio_by_rounds(baseline, own)
    assert ratio == pytest.approx(1.5, rel=0.005)
    assert 1.49 < low <= ratio <= high < 1.51
    assert ratio_by_rounds(baseline, own) == (ratio, low, high), "the bootstrap must be seeded"


def test_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(100):
        own = {r: [rng.lognormal(0, 0.1)] for r in range(30)}
        baseline = {r: [2 * rng.lognormal(0, 0.1)] for r in range(30)}
        _, low, high = ratio_by_rounds(baseline, own)
        covered += low <= 2 <= high
    assert covered >= 85


def test_rounds_without_a_sample_of_both_do_not_count() -> None:
    assert ratio_by_rounds({0: [4.0], 1: [9.0], 2: []}, {0: [2.0], 2: [1.0], 3: [1.0]}) == (2.0, 2.0, 2.0)
    assert ratio_by_rounds({0: [4.0]}, {1: [2.0]}) is None
