"""Conversion to two of four by the kernel, emulated and on a GPU, gives what plain PyTorch gives, bit for bit."""

from __future__ import annotations

import pytest
import torch

from impl.flash_llm.formats import TwoOfFour
from impl.flash_llm.kernels.convert import convert
from tests.impl.flash_llm.conftest import launcher
from tests.impl.flash_llm.matrices import random_sparse

ROWS, COLS = TwoOfFour.tile


@pytest.fixture(params=["emulated", pytest.param("kernel", marks=pytest.mark.gpu)])
def converted(request):
    """`converted(tiles)` gives units and counts on the CPU."""
    launch, device = launcher(request.param)
    return lambda tiles: tuple(part.cpu() for part in convert(tiles.to(device), launch))


def assert_same(converted, tiles):
    units, counts = converted(tiles)
    expected, expected_counts = TwoOfFour._encode(tiles)
    assert torch.equal(counts, expected_counts)
    assert torch.equal(units, expected)


@pytest.mark.parametrize("density", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1.0])
def test_random_blocks(converted, density):
    assert_same(converted, random_sparse(6 * ROWS, COLS, density).view(6, ROWS, COLS))


def test_blocks_of_all_densities_side_by_side(converted):
    densities = torch.linspace(0, 1, 9).view(9, 1, 1)
    tiles = torch.randn(9, ROWS, COLS).half() * (torch.rand(9, ROWS, COLS) < densities)
    assert (tiles.view(torch.int16) == -(2**15)).any()  # and with -0.0
    assert_same(converted, tiles)


def test_dense_rows_and_columns(converted):
    """Where many columns of one residue modulo 8 are gathered, and where all rows gather the same ones."""
    tiles = random_sparse(4 * ROWS, COLS, 0.02).view(4, ROWS, COLS)
    tiles[0, 5], tiles[1, :, 3::8], tiles[1, :, 0], tiles[2, :, :7], tiles[3, ::2, 100:130] = 1, 2, 3, 4, 5
    assert_same(converted, tiles)


def test_every_value(converted):
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    assert_same(converted, bits.view(torch.float16).view(-1, ROWS, COLS))
