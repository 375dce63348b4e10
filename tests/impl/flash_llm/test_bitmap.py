"""The bitmap format: exact round trips, the layout decoded by hand, and containers that are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm import bitmap
from impl.flash_llm.bitmap import Bitmap
from tests.impl.flash_llm.matrices import random_sparse
from tests.impl.flash_llm.test_formats import SHAPES, bits


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", [*SHAPES, (32, 256), (33, 257)])
def test_dense_round_trip(shape, density):
    w = random_sparse(*shape, density)
    w = w.abs() if density else w  # no -0.0 here
    assert torch.equal(bits(Bitmap.from_dense(w).to_dense()), bits(w))


def test_every_fp16_value_comes_back():
    w = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).view(256, 256)
    expected = bits(w).clone()
    expected[expected == -(2**15)] = 0  # -0.0
    assert torch.equal(bits(Bitmap.from_dense(w).to_dense()), expected)


def test_strided_input():
    w = random_sparse(200, 300, 0.3)
    assert torch.equal(Bitmap.from_dense(w.T).to_dense(), w.T)
    assert torch.equal(Bitmap.from_dense(w[::2, 1::3]).to_dense(), w[::2, 1::3])


def test_strips_do_not_show(monkeypatch):
    w = random_sparse(900, 200, 0.3)
    whole = Bitmap.from_dense(w)
    monkeypatch.setattr(bitmap, "_STRIP_ELEMENTS", 32 * 256)
    in_strips = Bitmap.from_dense(w)
    assert torch.equal(whole.lines, in_strips.lines)
    assert torch.equal(whole.offsets, in_strips.offsets)


def test_layout_decoded_by_hand():
    """Lane by lane: running parities, then values two to a word, at the places of mma.m16n8k16's A fragments."""
    w = random_sparse(40, 300, 0.2)
    matrix = Bitmap.from_dense(w)
    decoded = torch.zeros(64, 512).half()
    for block in range(2 * 2):
        for lane, column in enumerate(matrix.lines[matrix.offsets[block] : matrix.offsets[block + 1]].T):
            halves = iter(column[8:].contiguous().view(torch.float16))
            parity = 0
            for element in range(256):
                before, parity = parity, int(column[element // 32]) >> element % 32 & 1
                if parity == before:
                    continue
                step, fragment, register, half = element // 16, element // 8 % 2, element // 2 % 4, element % 2
                row = fragment * 16 + register % 2 * 8 + lane // 4
                col = step * 16 + register // 2 * 8 + lane % 4 * 2 + half
                decoded[block // 2 * 32 + row, block % 2 * 256 + col] = next(halves)
            assert not any(halves)
    assert torch.equal(decoded[:40, :300], w)
    assert not decoded[40:].any()
    assert not decoded[:, 300:].any()


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_bytes(density):
    """Per block 8 lines of bits and its longest lane's words, 128 bytes each; an int32 per block and one at the end."""
    w = random_sparse(64, 512, density)
    lanes = w.view(2, 2, 2, 8, 2, 16, 2, 4, 2).permute(0, 4, 3, 7, 1, 2, 5, 6, 8).reshape(4, 32, 256)
    longest = lanes.count_nonzero(2).amax(1)
    assert Bitmap.from_dense(w).nbytes == 128 * int((8 + (longest + 1) // 2).sum()) + 4 * 5


def test_other_dtypes_and_empty_shapes_are_refused():
    with pytest.raises(TypeError, match="float16"):
        Bitmap.from_dense(torch.ones(2, 2))
    with pytest.raises(TypeError, match="2-D"):
        Bitmap.from_dense(torch.ones(2).half())
    with pytest.raises(ValueError, match="no elements"):
        Bitmap.from_dense(torch.ones(0, 2).half())


def _change(array, index, value):
    changed = array.clone()
    changed[index] = value
    return changed


TAMPERED = {
    "truncated lines": (lambda m: {"lines": m.lines[:-1]}, "offsets must rise from 0"),
    "narrow lines": (lambda m: {"lines": m.lines[:, :-1].contiguous()}, "must have 32"),
    "not aligned": (lambda m: {"lines": _misaligned(m.lines)}, "aligned to 16 bytes"),
    "truncated offsets": (lambda m: {"offsets": m.offsets[:-1]}, "offsets has shape"),
    "falling offsets": (lambda m: {"offsets": _change(m.offsets, 1, int(m.offsets[2]) + 1)}, "offsets must rise"),
    "first offset": (lambda m: {"offsets": _change(m.offsets, 0, 1)}, "offsets must rise"),
    "moved offset": (lambda m: {"offsets": _change(m.offsets, 1, int(m.offsets[1]) - 1)}, "more or fewer|densest"),
    "another shape": (lambda m: {"shape": (200, 257)}, "offsets has shape"),
    "fewer columns": (lambda m: {"shape": (200, 66)}, "outside the matrix"),
    "fewer rows": (lambda m: {"shape": (195, 100)}, "outside the matrix"),
    "no rows": (lambda m: {"shape": (0, 100)}, "no elements"),
    "other bits": (lambda m: {"lines": _change(m.lines, 0, 0x55555555)}, "more or fewer|outside the matrix"),
    "densest": (lambda m: {"densest": m.densest - 1}, "the densest block has"),
    "other dtype": (lambda m: {"lines": m.lines.long()}, "int32"),
    "other device": (lambda m: {"offsets": m.offsets.to("meta")}, "meta"),
}


def _misaligned(lines):
    return torch.cat([lines.new_zeros(1), lines.flatten()])[1:].view(lines.shape)


@pytest.mark.parametrize("case", TAMPERED)
def test_a_tampered_container_is_refused(case):
    tamper, message = TAMPERED[case]
    matrix = Bitmap.from_dense(random_sparse(200, 100, 0.5))
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(matrix, **tamper(matrix))


@pytest.mark.gpu
def test_conversion_on_a_gpu_gives_the_same_container():
    w = random_sparse(1000, 777, 0.3)
    here, there = Bitmap.from_dense(w), Bitmap.from_dense(w.cuda())
    assert torch.equal(here.lines, there.lines.cpu())
    assert torch.equal(here.offsets, there.offsets.cpu())
    assert torch.equal(there.to_dense().cpu(), w)


@pytest.mark.gpu
def test_the_largest_published_layer_converts_in_bounded_memory():
    w = torch.randn(49152, 12288, dtype=torch.float16, device="cuda")
    w.masked_fill_(torch.rand(w.shape, dtype=torch.float16, device="cuda") < 0.5, 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    matrix = Bitmap.from_dense(w)
    assert torch.cuda.max_memory_allocated() - before < 2 * matrix.nbytes + 2**31
    assert torch.equal(matrix.to_dense(), w)
