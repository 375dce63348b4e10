"""The format two of four: the layout decoded by hand, its bytes, gathered columns, and blocks that are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import TwoOfFour
from tests.impl.flash_llm.matrices import random_sparse
from tests.impl.flash_llm.test_formats import change


def decoded(words, rows=32, columns=128):
    """A block's dense rows, lane by lane: flags, start, and of each word the two places by mma.sp's metadata."""
    halves = words.view(torch.int16)
    tile = torch.zeros(rows, columns).half()
    steps = int(halves[64]) >> 13 & 7
    end = 176 + 48 * steps
    for lane in range(32):
        word = int(halves[64 + lane]) & 8191
        assert word == end
        for step in range(4 + steps):
            extra = 176 + 48 * (step - 4)
            flags = int(words[lane]) >> 8 * step if step < 4 else int(halves[2 * (extra + 32) + lane])
            for register in range(8):
                if not flags >> register & 1:
                    continue
                fragment, half, lower = register // 4, register // 2 % 2, register % 2
                source = lane // 4 * 4 + fragment * 2 + half
                metadata = int(words[48 + source * 4 + step] if step < 4 else words[extra + source])
                places = metadata >> lower * 16 + lane % 4 * 4 & 15
                for value, place in zip(
                    words[word : word + 1].view(torch.float16), (places & 3, places >> 2), strict=True
                ):
                    column = half * 16 + lane % 4 * 4 + place
                    column = step * 32 + column if step < 4 else int(halves[2 * (extra + 32) + column]) >> 8 & 255
                    row = fragment * 16 + lower * 8 + lane // 4
                    assert value == 0 or tile[row, column] == 0
                    if value != 0:
                        tile[row, column] = value
                word += 1
        end = word
    assert len(words) - 4 < end <= len(words)
    return tile


@pytest.mark.parametrize("density", [0.1, 0.3, 1.0])
def test_layout_decoded_by_hand(density):
    w = random_sparse(40, 200, density)
    matrix, padded = TwoOfFour.from_dense(w), torch.zeros(64, 256).half()
    padded[:40, :200] = w
    for block in range(4):
        words = matrix.data[matrix.offsets[block] : matrix.offsets[block + 1]].flatten()
        row, column = block // 2 * 32, block % 2 * 128
        assert torch.equal(decoded(words), padded[row : row + 32, column : column + 128])


@pytest.mark.parametrize("density", [0.0, 0.1])
def test_bytes(density):
    """704 of a block, 4 for each four that are not all zero, 192 where some have a third or fourth, and 4 for these."""
    w = random_sparse(64, 256, density)
    fours = w.view(64, 64, 4) != 0
    moved = fours & (fours.cumsum(2) > 2)
    blocks = moved.view(2, 32, 2, 128).any(3).any(1).sum()
    fewest = 4 * 704 + 4 * int(fours.any(2).sum()) + 192 * int(blocks)
    units = TwoOfFour.from_dense(w).nbytes - 4 * 5
    assert fewest <= units <= fewest + 4 * int(moved.sum()) + 4 * 12


def test_columns_are_gathered_again_where_they_collide():
    """A full block: 64 columns have a third or fourth value, of these 32 again, and of these 16."""
    matrix = TwoOfFour.from_dense(torch.ones(32, 128).half())
    assert int(matrix.data.view(torch.int16).flatten()[64]) >> 13 & 7 == 4
    assert matrix.longest == (176 + 4 * 48 + 2048) / 4
    assert torch.equal(matrix.to_dense(), torch.ones(32, 128).half())


CHANGES = {
    "flags": (0, lambda word: word ^ 1),
    "start": (35, lambda word: word ^ 2),
    "order of places": (60, lambda word: (word & ~15) | 1),
    "gathered column": (176 + 32 + 3, lambda word: word ^ 0x8000),
    "value": (-5, lambda word: word & 0xFFFF | -0x80000000),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_altered_block_is_refused(case):
    """Whatever part is altered: another one would be made of the elements that it then has, or none can be read."""
    index, alter = CHANGES[case]
    matrix = TwoOfFour.from_dense(random_sparse(64, 256, 0.4))
    first, last = (int(matrix.offsets[block]) * 4 for block in (1, 2))
    index = first + index if index >= 0 else last + index
    data = change(matrix.data, index, alter(int(matrix.data.view(-1)[index])))
    with pytest.raises(ValueError, match="tile 1, from row 0 and column 128: "):
        dataclasses.replace(matrix, data=data)
