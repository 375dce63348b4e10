"""The few statistics that records are made of. Times in seconds; averages of ratios are geometric means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES = 2000


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, by linear interpolation. Raises ValueError when empty."""
    if not len(values):
        raise ValueError("no values")
    q1, median, q3 = np.percentile(np.asarray(values, dtype=float), [25, 50, 75])
    return float(q1), float(median), float(q3)


def relative_iqr(values: Sequence[float]) -> float:
    """(q3 - q1) / median."""
    q1, median, q3 = quartiles(values)
    return (q3 - q1) / median if median else float("inf")


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError when empty or when a value is not positive."""
    array = np.asarray(values, dtype=float)
    if not array.size or (array <= 0).any():
        raise ValueError("a geometric mean needs positive values, at least one")
    return float(np.exp(np.log(array).mean()))


def ratio_by_rounds(
    baseline: Mapping[int, Sequence[float]], own: Mapping[int, Sequence[float]], seed: int = 0
) -> tuple[float, float, float] | None:
    """How many times faster `own` is: median over rounds of baseline / own, and its 95 % bootstrap interval.

    Both map a round to its times; a round counts by its medians and only where both have one. The bootstrap
    resamples rounds, because samples within one round share the state of the card. None without a common round.
    """
    common = sorted(r for r in baseline if r in own and len(baseline[r]) and len(own[r]))
    if not common:
        return None
    ratios = np.array([np.median(baseline[r]) / np.median(own[r]) for r in common])
    draws = np.random.default_rng(seed).choice(ratios, size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)
