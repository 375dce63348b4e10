"""The spmm op against NumPy, and its patterns against counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from harness.ops import OPS, spmm

OP = OPS["spmm"]


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (127, 65, 3), (128, 96, 9)])
@pytest.mark.parametrize("sparsity", [0.0, 0.8, 1.0])
def test_reference_is_the_exact_product(m, k, n, sparsity, monkeypatch):
    monkeypatch.setattr(spmm, "_CHUNK_ELEMENTS", 50 * k)  # several chunks of rows
    case = OP.Params(m=m, k=k, n=n, sparsity=sparsity, seed=m)
    inputs = OP.inputs(case, "cpu")
    y = OP.reference(case, inputs)["y"]
    assert y.dtype == torch.float64
    exact = inputs["w"].double().numpy() @ inputs["x"].double().numpy()
    np.testing.assert_allclose(y.numpy(), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 1.0])
def test_random_pattern_has_the_sparsity(sparsity):
    w = OP.inputs(OP.Params(m=256, k=512, n=8, sparsity=sparsity), "cpu")["w"]
    share = (w == 0).double().mean().item()
    assert share == pytest.approx(sparsity, abs=0.005)
    if sparsity < 1:
        assert w[w != 0].double().std().item() == pytest.approx(1, abs=0.02)


def test_two_of_four_in_every_group_and_every_place():
    w = OP.inputs(OP.Params(m=64, k=256, n=8, sparsity=0.5, pattern="2:4"), "cpu")["w"]
    kept = (w != 0).view(-1, 4)
    assert (kept.sum(1) == 2).all()
    assert len({tuple(row) for row in kept.tolist()}) == 6


def pattern_of(pattern, sparsity=0.8, m=512, k=640):
    """Which elements are not zero."""
    return OP.inputs(OP.Params(m=m, k=k, n=8, sparsity=sparsity, pattern=pattern), "cpu")["w"] != 0


@pytest.mark.parametrize("pattern", ["row_skew", "banded", "clustered", "magnitude"])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.95])
def test_every_pattern_has_the_sparsity(pattern, sparsity):
    tolerance = {"row_skew": 0.05, "banded": 1 / 640, "clustered": 0.07, "magnitude": 1e-6}[pattern]
    assert 1 - pattern_of(pattern, sparsity).double().mean() == pytest.approx(sparsity, abs=tolerance)


def test_row_skew_is_between_rows_alone():
    kept = pattern_of("row_skew").double()
    rows = kept.mean(1)
    assert rows.min() < 0.05
    assert rows.max() > 0.35
    assert kept.mean(0).std() < 0.05


def test_a_band_is_one_run_that_follows_the_diagonal():
    kept = pattern_of("banded")
    assert (kept.sum(1) == 128).all()
    starts = kept & ~kept.roll(1, 1)
    assert (starts.sum(1) == 1).all()
    middle = (starts.int().argmax(1) + 64) % 640
    assert torch.equal(middle, torch.arange(512) * 640 // 512)


def test_clusters_are_empty_or_twice_as_dense():
    blocks = pattern_of("clustered").view(16, 32, 20, 32).double().mean((1, 3)).flatten()
    full = blocks > 0.2
    assert not blocks[~full].any()
    assert 0.35 < full.double().mean() < 0.65
    assert blocks[full].mean() == pytest.approx(0.4, abs=0.01)


def test_magnitude_keeps_the_largest():
    w = OP.inputs(OP.Params(m=64, k=256, n=8, sparsity=0.8, pattern="magnitude"), "cpu")["w"]
    assert (w != 0).sum() == 64 * 256 - round(0.8 * 64 * 256)
    assert w[w != 0].abs().min() > 1.2  # of normal values 80 % are within 1.28


@pytest.mark.parametrize("pattern", ["random", "2:4", "banded", "clustered"])
def test_statistics_of_the_pattern_are_counted(pattern):
    case = OP.Params(m=256, k=256, n=8, sparsity=0.5, pattern=pattern)
    inputs = OP.inputs(case, "cpu")
    tiles = (inputs["w"] != 0).view(2, 128, 4, 64).double().mean((1, 3))
    counted = OP.counted(case, inputs)
    assert counted["tile_density_max"] == pytest.approx(tiles.max().item())
    assert counted["tile_density_variance"] == pytest.approx(tiles.var(unbiased=False).item())


@pytest.mark.parametrize(
    "fields",
    [
        *({"sparsity": 1.01}, {"sparsity": -0.1}, {"m": 0}, {"n": -8}, {"k": 8.5}),
        *({"pattern": "2:4", "sparsity": 0.8}, {"pattern": "2:4", "k": 6}),
        *({"pattern": "row_skew", "sparsity": 0.4}, {"pattern": "clustered", "sparsity": 0.4}),
        *({"pattern": "magnitude", "dtype": "float32"}, {"pattern": "other"}),
    ],
)
def test_bad_params_are_refused(fields):
    with pytest.raises(ValidationError):
        OP.Params(**{"m": 8, "n": 8, "k": 8, "sparsity": 0.5, **fields})


def test_counts():
    case = OP.Params(m=28672, k=7168, n=16, sparsity=0.8)
    assert OP.flops(case) == 2 * 28672 * 7168 * 16
    assert OP.bytes_floor(case) == 2 * (28672 * 7168 + 7168 * 16 + 28672 * 16)


def test_plain_accumulates_a_long_row_in_float32():
    case = OP.Params(m=1, k=8192, n=1, sparsity=0.0)
    ones = {"w": torch.ones(1, 8192, dtype=torch.float16), "x": torch.ones(8192, 1, dtype=torch.float16)}
    assert OP.plain(case, ones, torch.float16)["y"].item() == 8192


def test_float32_reductions_are_scoped():
    flags = torch.backends.cuda.matmul
    before = flags.allow_fp16_reduced_precision_reduction, flags.allow_bf16_reduced_precision_reduction
    with spmm.float32_reductions():
        assert flags.allow_fp16_reduced_precision_reduction is False
        assert flags.allow_bf16_reduced_precision_reduction is False
    assert before == (flags.allow_fp16_reduced_precision_reduction, flags.allow_bf16_reduced_precision_reduction)
