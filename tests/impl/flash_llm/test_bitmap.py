"""The bitmap format: the layout decoded by hand, its bytes, and bits that are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import Bitmap
from tests.impl.flash_llm.matrices import random_sparse
from tests.impl.flash_llm.test_formats import change


def test_layout_decoded_by_hand():
    """Lane by lane: running parities, then values two to a word, the first high, where mma.m16n8k16 has them in A."""
    w = random_sparse(40, 300, 0.2)
    matrix = Bitmap.from_dense(w)
    decoded = torch.zeros(64, 384).half()
    for block in range(2 * 3):
        for lane, column in enumerate(matrix.data[matrix.offsets[block] : matrix.offsets[block + 1]].T):
            halves = iter(column[4:].contiguous().view(torch.float16).view(-1, 2).flip(1).flatten())
            parity = 0
            for element in range(128):
                before, parity = parity, int(column[element // 32]) >> element % 32 & 1
                if parity == before:
                    continue
                step, fragment, register, half = element // 16, element // 8 % 2, element // 2 % 4, element % 2
                row = fragment * 16 + register % 2 * 8 + lane // 4
                col = step * 16 + register // 2 * 8 + lane % 4 * 2 + half
                decoded[block // 3 * 32 + row, block % 3 * 128 + col] = next(halves)
            assert not any(halves)
    assert torch.equal(decoded[:40, :300], w)
    assert not decoded[40:].any()
    assert not decoded[:, 300:].any()


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_bytes(density):
    """Per block 4 lines of bits and its longest lane's words, 128 bytes each; an int32 per block and one at the end."""
    w = random_sparse(64, 512, density)
    lanes = w.view(2, 2, 2, 8, 4, 8, 2, 4, 2).permute(0, 4, 3, 7, 1, 2, 5, 6, 8).reshape(8, 32, 128)
    lines = 4 + (lanes.count_nonzero(2).amax(1) + 1) // 2
    matrix = Bitmap.from_dense(w)
    assert matrix.nbytes == 128 * int(lines.sum()) + 4 * 9
    assert matrix.longest == lines.max()


def test_other_bits_are_refused():
    matrix = Bitmap.from_dense(random_sparse(200, 100, 0.5))
    with pytest.raises(ValueError, match=r"tile 0, .*: (\d+ lines, but its bits need|an element lies outside)"):
        dataclasses.replace(matrix, data=change(matrix.data, 3 * 32, 0x55555555))
