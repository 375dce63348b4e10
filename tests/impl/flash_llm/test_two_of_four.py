"""The format two of four: the layout decoded by hand, its bytes, gathered columns, and blocks that are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import TwoOfFour
from tests.impl.flash_llm.matrices import random_sparse
from tests.impl.flash_llm.test_formats import change

ROWS, COLS = TwoOfFour.tile
PAIRS = COLS // 64  # of steps of 32 columns
STARTS = 32 * PAIRS  # words before them
METADATA = STARTS + 16
OWN = METADATA + 64 * PAIRS  # words before the gathered steps, of which each takes 48


def slots_of(words, halves, lane):
    """A lane's pairs of slots, step after step, as (step, register, two float16)."""
    steps, start = int(halves[2 * STARTS + lane]) >> 12 & 15, int(halves[2 * STARTS + lane]) & 4095
    word, used, parity = OWN + 48 * steps + start, 0, 0
    for group in range(16 * PAIRS):
        pair, bit = divmod(group, 16)
        values = torch.zeros(2).half()
        for half in range(2):
            now = int(words[pair * 32 + lane]) >> (2 * bit + half) & 1
            if now != parity:  # a value; the earlier one of a word is high
                values[half] = words[word + used // 2 : word + used // 2 + 1].view(torch.float16)[1 - used % 2]
                used += 1
            parity = now
        yield group // 8, group % 8, values
    word += -(-used // 2)
    for step in range(steps):
        flags = int(halves[2 * (OWN + 48 * step + 32) + lane])
        for register in range(8):
            if flags >> register & 1:
                yield 2 * PAIRS + step, register, words[word : word + 1].view(torch.float16)
                word += 1


def decoded(words):
    """A block's dense rows, lane by lane, the two places of each register by mma.sp's metadata."""
    halves, tile = words.view(torch.int16), torch.zeros(ROWS, COLS).half()
    for lane in range(32):
        for step, register, values in slots_of(words, halves, lane):
            fragment, half, lower = register // 4, register // 2 % 2, register % 2
            source = lane // 4 * 4 + fragment * 2 + half
            gathered = OWN + 48 * (step - 2 * PAIRS)
            own = METADATA + step // 2 * 64 + source * 2 + step % 2
            metadata = int(words[own if step < 2 * PAIRS else gathered + source])
            places = metadata >> lower * 16 + lane % 4 * 4 & 15
            assert places & 3 < places >> 2
            for value, place in zip(values, (places & 3, places >> 2), strict=True):
                column = half * 16 + lane % 4 * 4 + place
                if step < 2 * PAIRS:
                    column += step * 32
                else:
                    column = int(halves[2 * (gathered + 32) + column]) >> 8 & 255
                row = fragment * 16 + lower * 8 + lane // 4
                assert value == 0 or tile[row, column] == 0
                if value != 0:
                    tile[row, column] = value
    return tile


@pytest.mark.parametrize("density", [0.1, 0.3, 1.0])
def test_layout_decoded_by_hand(density):
    w = random_sparse(40, COLS + 72, density)
    matrix, padded = TwoOfFour.from_dense(w), torch.zeros(64, 2 * COLS).half()
    padded[:40, : COLS + 72] = w
    for block in range(4):
        words = matrix.data[matrix.offsets[block] : matrix.offsets[block + 1]].flatten()
        row, column = block // 2 * ROWS, block % 2 * COLS
        assert torch.equal(decoded(words), padded[row : row + ROWS, column : column + COLS])


@pytest.mark.parametrize("density", [0.0, 0.1])
def test_bytes(density):
    """Of a block what says where, 2 for each of the first two non-zeros of four, 2 more for each lane with an odd
    number of them, 192 where some have a third or fourth, and 4 for these."""
    w = random_sparse(2 * ROWS, 2 * COLS, density)
    fours = w.view(2 * ROWS, -1, 4) != 0
    moved = int((fours & (fours.cumsum(2) > 2)).sum())
    blocks = (fours & (fours.cumsum(2) > 2)).view(2, ROWS, 2, COLS).any(3).any(1).sum()
    fewest = 4 * 4 * OWN + 2 * (int(fours.sum()) - moved) + 192 * int(blocks)
    units = TwoOfFour.from_dense(w).nbytes - 4 * 5
    assert fewest <= units <= fewest + 4 * moved + 4 * (32 * 2 + 12)


def test_half_of_a_word_for_a_single_value():
    """One value in each group of four: a quarter of the elements, half a byte each."""
    w = torch.zeros(ROWS, COLS).half()
    w.view(ROWS, -1, 4).scatter_(2, torch.randint(4, (ROWS, COLS // 4, 1)), 1)
    assert TwoOfFour.from_dense(w).data.nbytes == 4 * OWN + 2 * w.numel() // 4


def test_columns_are_gathered_again_where_they_collide():
    """A full block: half of the columns have a third or fourth value, half of these again, and so on."""
    matrix = TwoOfFour.from_dense(torch.ones(ROWS, COLS).half())
    steps = COLS // 64 + COLS // 128 + COLS // 256 + 1
    assert int(matrix.data.view(torch.int16).flatten()[2 * STARTS]) >> 12 & 15 == steps
    assert matrix.longest == (OWN + steps * 48 + ROWS * COLS // 2) / 4
    assert torch.equal(matrix.to_dense(), torch.ones(ROWS, COLS).half())


CHANGES = {
    "parity of the last slot": (STARTS - 32, lambda word: word ^ -0x80000000),
    "start": (STARTS + 3, lambda word: word ^ 2),
    "order of places": (METADATA + 12, lambda word: (word & ~15) | 1),
    "gathered column": (OWN + 32 + 3, lambda word: word ^ 0x8000),
    "value": (-5, lambda word: word & 0xFFFF | -0x80000000),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_altered_block_is_refused(case):
    """Whatever part is altered: another one would be made of the elements that it then has, or none can be read."""
    index, alter = CHANGES[case]
    matrix = TwoOfFour.from_dense(random_sparse(2 * ROWS, 2 * COLS, 0.4))
    first, last = (int(matrix.offsets[block]) * 4 for block in (1, 2))
    index = first + index if index >= 0 else last + index
    data = change(matrix.data, index, alter(int(matrix.data.view(-1)[index])))
    with pytest.raises(ValueError, match=f"tile 1, from row 0 and column {COLS}: "):
        dataclasses.replace(matrix, data=data)
