"""Tiled-CSL: the layout decoded by hand, its bytes, the conflict-free order, and entries that are refused."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from impl.flash_llm.formats import TiledCSL
from tests.impl.flash_llm.matrices import random_sparse
from tests.impl.flash_llm.test_formats import change


def test_layout_decoded_by_hand():
    """Entry by entry: value low, byte offset in the swizzled tile high, tiles row by row."""
    w = random_sparse(200, 130, 0.1)
    matrix = TiledCSL.from_dense(w)
    decoded = torch.zeros(256, 192).half()
    for tile in range(2 * 3):
        for word in matrix.data[matrix.offsets[tile] : matrix.offsets[tile + 1]].flatten().tolist():
            row, within_row = divmod(word >> 16, 128)
            chunk = (within_row // 16) ^ (row % 8)
            column = chunk * 8 + within_row % 16 // 2
            value = torch.tensor([word & 0xFFFF], dtype=torch.int32).to(torch.int16).view(torch.float16)
            decoded[tile // 3 * 128 + row, tile % 3 * 64 + column] += value[0]
    assert torch.equal(decoded[:200, :130], w)
    assert not decoded[200:].any()
    assert not decoded[:, 130:].any()


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_bytes(density):
    """4 per non-zero, tiles filled up to 16 bytes, and an int32 per tile and one for the end."""
    w = random_sparse(256, 192, density)
    tiles = w.view(2, 128, 3, 64).transpose(1, 2).reshape(6, -1)
    vectors = sum(math.ceil(int(tile.count_nonzero()) / 4) for tile in tiles)
    assert TiledCSL.from_dense(w).nbytes == 16 * vectors + 4 * 7


def store_cycles(matrix, tile):
    """Bank cycles of each 16-bit warp store of a tile: the most different words that one bank gets in it."""
    words = matrix.data[matrix.offsets[tile] : matrix.offsets[tile + 1]] >> 16
    for warp in words.split(32):
        for store in warp.T:
            word = (store // 4).unique()
            yield int((word % 32).bincount().max())


def test_a_full_tile_is_stored_without_conflicts():
    matrix = TiledCSL.from_dense(torch.ones(128, 64).half())
    assert list(store_cycles(matrix, 0)) == [1] * 256


@pytest.mark.parametrize(("density", "excess"), [(0.1, 0.3), (0.2, 0.2), (0.5, 0.1)])
def test_stores_of_random_tiles_take_few_cycles(density, excess):
    """Near what no order can beat: as many cycles as a tile's fullest bank has entries. Summed over 16 tiles."""
    matrix = TiledCSL.from_dense(random_sparse(512, 256, density))
    tiles = matrix.data.split(matrix.offsets.diff().tolist())
    fullest = sum(int((entries.flatten() >> 18 & 31).bincount().max()) for entries in tiles)
    assert sum(sum(store_cycles(matrix, tile)) for tile in range(16)) <= (1 + excess) * fullest


TAMPERED = {
    "place outside": (lambda w: change(w.data, 0, 128 * 64 * 2 << 16), "tile 0, .*: entry 0 lies outside its tile"),
    "negative place": (lambda w: change(w.data, 0, -1), "tile 0, .*: entry 0 lies outside its tile"),
    "odd byte": (lambda w: change(w.data, 0, 1 << 16), "tile 0, .*: entry 0 lies outside its tile"),
    "place twice": (lambda w: change(w.data, 0, int(w.data[0, 1])), "tile 0, .*: entry 0 has the place of another"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_tampered_entries_are_refused(case):
    tamper, message = TAMPERED[case]
    matrix = TiledCSL.from_dense(random_sparse(200, 100, 0.5))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(matrix, data=tamper(matrix))


def test_a_tile_with_more_entries_than_elements_is_refused():
    entries = torch.zeros(128 * 64 // 4 + 1, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"tile 0, .*: offsets give it 2049 units, which are 0 to 2048"):
        TiledCSL(entries, torch.tensor([0, len(entries)], dtype=torch.int32), (128, 64))
