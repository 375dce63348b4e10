"""Which probabilities are dropped: the generator, and that nothing but seed, batch, head, row and column decides."""

from __future__ import annotations

import pytest
import torch

from impl.spark_attention.dropout import kept, philox
from impl.spark_attention.extras import Extras


def kept_of(seed: int, p: float = 0.1, batch: int = 2, heads: int = 3, rows=slice(0, 96), columns=slice(0, 300)):
    return kept(torch.tensor(seed), Extras(None, p).dropped, batch, heads, rows, columns)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        ((0xFFFFFFFF,) * 4, -1, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
        ),
    ],
)
def test_the_generators_published_answers(counter, key, expected):
    words = philox(tuple(map(torch.tensor, counter)), torch.tensor(key))
    assert tuple(map(int, words)) == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keeps_its_share(p):
    mask = kept_of(5, p, rows=slice(0, 512), columns=slice(0, 512)).double()
    sigma = (p * (1 - p) / mask.numel()) ** 0.5
    assert abs(mask.mean().item() - (1 - p)) < 3 * sigma


@pytest.mark.parametrize("p", [1e-9, 1e-5, 0.1, 0.5, 0.99999, 1 - 1e-9])
def test_the_scale_is_that_of_the_share_kept(p):
    """So that the output's mean is the one without dropout, also where the grid of 1/65536 is coarse."""
    extras = Extras(None, p)
    assert extras.keep_scale * (1 - extras.dropped / 2**16) == pytest.approx(1, rel=1e-12)


def test_heads_sequences_rows_columns_and_seeds_differ():
    mask = kept_of(5, 0.5)
    slices = [mask[0, 0], mask[0, 1], mask[1, 0], kept_of(6, 0.5)[0, 0], kept_of(5 + 2**32, 0.5)[0, 0]]
    for i, first in enumerate(slices):
        for second in slices[i + 1 :]:
            assert 0.45 < (first == second).double().mean() < 0.55
    for distance in range(1, 40):  # beyond the rows and columns that share one call of the generator
        for axis in (2, 3):
            assert 0.48 < (mask == mask.roll(distance, axis)).double().mean() < 0.52


def test_a_part_is_that_of_the_whole():
    whole = kept_of(7)
    part = kept_of(7, rows=slice(37, 70), columns=slice(65, 202))
    assert torch.equal(part, whole[:, :, 37:70, 65:202])
    assert torch.equal(kept_of(7, batch=1), whole[:1])
