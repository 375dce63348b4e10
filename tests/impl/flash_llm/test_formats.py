"""Tiled-CSL: exact round trips, the layout decoded by hand, conflict-free order, and containers that are refused."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from impl.flash_llm import formats
from impl.flash_llm.formats import TiledCSL
from tests.impl.flash_llm.matrices import random_sparse

SHAPES = [(1, 1), (127, 63), (128, 64), (129, 65), (300, 200), (1, 1000), (1000, 1)]


def bits(matrix):
    return matrix.contiguous().view(torch.int16)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_round_trip(shape, density):
    w = random_sparse(*shape, density)
    w = w.abs() if density else w  # no -0.0 here
    assert torch.equal(bits(TiledCSL.from_dense(w).to_dense()), bits(w))


def test_every_fp16_value_comes_back():
    w = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).view(256, 256)
    back = bits(TiledCSL.from_dense(w).to_dense())
    expected = bits(w).clone()
    expected[expected == -(2**15)] = 0  # -0.0
    assert torch.equal(back, expected)


def test_strided_input():
    w = random_sparse(200, 300, 0.3)
    assert torch.equal(TiledCSL.from_dense(w.T).to_dense(), w.T)
    assert torch.equal(TiledCSL.from_dense(w[::2, 1::3]).to_dense(), w[::2, 1::3])


def test_strips_do_not_show(monkeypatch):
    w = random_sparse(900, 200, 0.3)
    whole = TiledCSL.from_dense(w)
    monkeypatch.setattr(formats, "_STRIP_ELEMENTS", 128 * 64)
    in_strips = TiledCSL.from_dense(w)
    assert torch.equal(whole.entries, in_strips.entries)
    assert torch.equal(whole.offsets, in_strips.offsets)


def test_layout_decoded_by_hand():
    """Entry by entry: value low, byte offset in the swizzled tile high, tiles row by row."""
    w = random_sparse(200, 130, 0.1)
    matrix = TiledCSL.from_dense(w)
    decoded = torch.zeros(256, 192).half()
    for tile in range(2 * 3):
        for word in matrix.entries[4 * matrix.offsets[tile] : 4 * matrix.offsets[tile + 1]].tolist():
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
    words = matrix.entries[4 * matrix.offsets[tile] : 4 * matrix.offsets[tile + 1]].view(-1, 4) >> 16
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
    tiles = matrix.entries.split((matrix.offsets.diff() * 4).tolist())
    fullest = sum(int((entries >> 18 & 31).bincount().max()) for entries in tiles)
    assert sum(sum(store_cycles(matrix, tile)) for tile in range(16)) <= (1 + excess) * fullest


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("shape", SHAPES)
def test_csr_and_coo_round_trip(shape):
    w = random_sparse(*shape, 0.3)
    csr, coo = w.to_sparse_csr(), w.to_sparse_coo()
    assert torch.equal(TiledCSL.from_csr(csr.crow_indices(), csr.col_indices(), csr.values(), shape).to_dense(), w)
    assert torch.equal(TiledCSL.from_coo(coo.indices(), coo.values(), shape).to_dense(), w)


def test_unsorted_and_repeated_elements_are_summed():
    rows, columns = torch.tensor([2, 0, 2, 2, 1, 2]), torch.tensor([4, 1, 0, 4, 2, 4])
    values = torch.tensor([2048.0, 3.0, 5.0, 1.0, 0.0, 1.0]).half()  # fp16 sums would stay at 2048
    expected = torch.zeros(3, 5).half()
    expected[2, 4], expected[0, 1], expected[2, 0] = 2050, 3, 5
    coo = TiledCSL.from_coo(torch.stack([rows, columns]), values, (3, 5))
    assert torch.equal(coo.to_dense(), expected)
    order = torch.tensor([1, 4, 0, 2, 3, 5])
    csr = TiledCSL.from_csr(torch.tensor([0, 1, 2, 6]), columns[order], values[order], (3, 5))
    assert torch.equal(csr.to_dense(), expected)
    assert csr.nbytes == coo.nbytes == 16 + 4 * 2  # three elements: one vector of one tile


@pytest.mark.parametrize(
    ("crow", "col", "message"),
    [
        ([0, 1, 3], [0, 1], "crow_indices must rise from 0 to 2"),
        ([0, 2, 1], [0, 1], "crow_indices must rise"),
        ([1, 1, 2], [0, 1], "crow_indices must rise"),
        ([0, 2], [0, 1], "crow_indices has shape"),
        ([0, 1, 2], [0, 5], r"column indices run from 0 to 5; they must be in \[0, 5\)"),
        ([0, 1, 2], [-1, 0], "column indices run from -1"),
        ([0, 1, 2], [0, 1, 2], "3 column indices|column indices for"),
    ],
)
def test_bad_csr_is_refused(crow, col, message):
    with pytest.raises(ValueError, match=message):
        TiledCSL.from_csr(torch.tensor(crow), torch.tensor(col), torch.ones(2).half(), (2, 5))


@pytest.mark.parametrize("indices", [[[0, 2], [0, 0]], [[-1, 0], [0, 0]], [[0, 0]]])
def test_bad_coo_is_refused(indices):
    with pytest.raises(ValueError, match="indices"):
        TiledCSL.from_coo(torch.tensor(indices), torch.ones(2).half(), (2, 5))


def test_other_dtypes_and_empty_shapes_are_refused():
    with pytest.raises(TypeError, match="float16"):
        TiledCSL.from_dense(torch.ones(2, 2))
    with pytest.raises(TypeError, match="2-D"):
        TiledCSL.from_dense(torch.ones(2).half())
    with pytest.raises(ValueError, match="no elements"):
        TiledCSL.from_dense(torch.ones(0, 2).half())
    with pytest.raises(TypeError, match="float16"):
        TiledCSL.from_csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1))


def _change(array, index, value):
    changed = array.clone()
    changed[index] = value
    return changed


TAMPERED = {
    "truncated entries": (lambda m: {"entries": m.entries[:-4]}, "offsets must rise from 0"),
    "half a vector": (lambda m: {"entries": m.entries[:-1]}, "whole vectors"),
    "not aligned": (lambda m: {"entries": torch.cat([m.entries[:1], m.entries])[1:]}, "aligned to 16 bytes"),
    "truncated offsets": (lambda m: {"offsets": m.offsets[:-1]}, "offsets has shape"),
    "falling offsets": (lambda m: {"offsets": _change(m.offsets, 1, int(m.offsets[2]) + 1)}, "offsets must rise"),
    "first offset": (lambda m: {"offsets": _change(m.offsets, 0, 1)}, "offsets must rise"),
    "another shape": (lambda m: {"shape": (300, 129)}, "offsets has shape"),
    "fewer columns": (lambda m: {"shape": (200, 66)}, "outside the matrix"),
    "fewer rows": (lambda m: {"shape": (130, 100)}, "outside the matrix"),
    "no rows": (lambda m: {"shape": (0, 100)}, "no elements"),
    "place outside": (lambda m: {"entries": _change(m.entries, 0, 128 * 64 * 2 << 16)}, "outside its tile"),
    "negative place": (lambda m: {"entries": _change(m.entries, 0, -1)}, "outside its tile"),
    "odd byte": (lambda m: {"entries": _change(m.entries, 0, 1 << 16)}, "outside its tile"),
    "place twice": (lambda m: {"entries": _change(m.entries, 0, int(m.entries[1]))}, "same place"),
    "other dtype": (lambda m: {"entries": m.entries.long()}, "int32"),
    "other device": (lambda m: {"offsets": m.offsets.to("meta")}, "meta"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_tampered_container_is_refused(case):
    tamper, message = TAMPERED[case]
    matrix = TiledCSL.from_dense(random_sparse(200, 100, 0.5))
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(matrix, **tamper(matrix))


def test_a_tile_with_more_entries_than_elements_is_refused():
    entries = torch.zeros(128 * 64 + 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="more entries than it has elements"):
        TiledCSL(entries, torch.tensor([0, len(entries) // 4], dtype=torch.int32), (128, 64))


@pytest.mark.gpu
def test_conversion_on_a_gpu_gives_the_same_container():
    w = random_sparse(1000, 777, 0.3)
    here, there = TiledCSL.from_dense(w), TiledCSL.from_dense(w.cuda())
    assert torch.equal(here.entries, there.entries.cpu())
    assert torch.equal(here.offsets, there.offsets.cpu())
    assert torch.equal(there.to_dense().cpu(), w)


@pytest.mark.gpu
def test_the_largest_published_layer_converts_in_bounded_memory():
    w = torch.randn(49152, 12288, dtype=torch.float16, device="cuda")
    w.masked_fill_(torch.rand(w.shape, dtype=torch.float16, device="cuda") < 0.5, 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    matrix = TiledCSL.from_dense(w)
    assert torch.cuda.max_memory_allocated() - before < 2 * matrix.nbytes + 2**31
    assert torch.equal(matrix.to_dense(), w)
