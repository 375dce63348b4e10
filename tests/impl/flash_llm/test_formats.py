"""Every format: exact round trips from dense, CSR and COO, and containers that are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from impl.flash_llm.formats import base
from tests.impl.flash_llm.matrices import bits, random_sparse

SHAPES = [(1, 1), (127, 63), (128, 64), (129, 65), (300, 200), (1, 1000), (1000, 1), (32, 256), (33, 257)]


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_round_trip(kind, shape, density):
    w = random_sparse(*shape, density)
    w = w.abs() if density else w  # no -0.0 here
    assert torch.equal(bits(kind.from_dense(w).to_dense()), bits(w))


def test_every_fp16_value_comes_back(kind):
    w = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).view(256, 256)
    back = bits(kind.from_dense(w).to_dense())
    expected = bits(w).clone()
    expected[expected == -(2**15)] = 0  # -0.0
    assert torch.equal(back, expected)


def test_strided_input(kind):
    w = random_sparse(200, 300, 0.3)
    assert torch.equal(kind.from_dense(w.T).to_dense(), w.T)
    assert torch.equal(kind.from_dense(w[::2, 1::3]).to_dense(), w[::2, 1::3])


def test_strips_do_not_show(kind, monkeypatch):
    w = random_sparse(900, 200, 0.3)
    whole = kind.from_dense(w)
    monkeypatch.setitem(base.STRIP_ELEMENTS, "cpu", 128 * 64)
    in_strips = kind.from_dense(w)
    assert torch.equal(whole.data, in_strips.data)
    assert torch.equal(whole.offsets, in_strips.offsets)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("shape", SHAPES)
def test_csr_and_coo_round_trip(kind, shape):
    w = random_sparse(*shape, 0.3)
    csr, coo = w.to_sparse_csr(), w.to_sparse_coo()
    assert torch.equal(kind.from_csr(csr.crow_indices(), csr.col_indices(), csr.values(), shape).to_dense(), w)
    assert torch.equal(kind.from_coo(coo.indices(), coo.values(), shape).to_dense(), w)


def test_every_fp16_value_comes_back_from_csr(kind):
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    crow, columns = torch.arange(0, 2**16 + 1, 256), torch.arange(2**16) % 256
    dense = values.view(256, 256)
    assert torch.equal(kind.from_csr(crow, columns, values, (256, 256)).data, kind.from_dense(dense).data)


def test_unsorted_and_repeated_elements_are_summed(kind):
    rows, columns = torch.tensor([2, 0, 2, 2, 1, 2]), torch.tensor([4, 1, 0, 4, 2, 4])
    values = torch.tensor([2048.0, 3.0, 5.0, 1.0, 0.0, 1.0]).half()  # fp16 sums would stay at 2048
    expected = torch.zeros(3, 5).half()
    expected[2, 4], expected[0, 1], expected[2, 0] = 2050, 3, 5
    coo = kind.from_coo(torch.stack([rows, columns]), values, (3, 5))
    assert torch.equal(coo.to_dense(), expected)
    order = torch.tensor([1, 4, 0, 2, 3, 5])
    csr = kind.from_csr(torch.tensor([0, 1, 2, 6]), columns[order], values[order], (3, 5))
    assert torch.equal(csr.to_dense(), expected)
    assert csr.nbytes == coo.nbytes == kind.from_dense(expected).nbytes


def test_what_is_not_repeated_keeps_its_bits(kind):
    """A sum elsewhere in the matrix touches nothing else: NaN keep their payloads."""
    words = [0x7E01, 0xFE35, 0x7D01, 0x0001, 0x3C00, 0x3C00]
    values = torch.tensor(words, dtype=torch.int32).to(torch.int16).view(torch.float16)
    indices = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 2, 0, 1, 2, 2]])
    expected = torch.tensor([[0x7E01, 0, 0xFE35], [0x7D01, 1, 0x4000]], dtype=torch.int32).to(torch.int16)
    assert torch.equal(bits(kind.from_coo(indices, values, (2, 3)).to_dense()), expected)


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
def test_bad_csr_is_refused(kind, crow, col, message):
    with pytest.raises(ValueError, match=message):
        kind.from_csr(torch.tensor(crow), torch.tensor(col), torch.ones(2).half(), (2, 5))


@pytest.mark.parametrize("indices", [[[0, 2], [0, 0]], [[-1, 0], [0, 0]], [[0, 0]]])
def test_bad_coo_is_refused(kind, indices):
    with pytest.raises(ValueError, match="indices"):
        kind.from_coo(torch.tensor(indices), torch.ones(2).half(), (2, 5))


@pytest.mark.parametrize("rows", [[0, 1], [1, 0]])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_values_as_elements(kind, rows, count):
    """Also where they have to be put in order first."""
    with pytest.raises(ValueError, match=rf"2 elements for \({count},\) values"):
        kind.from_coo(torch.tensor([rows, [0, 1]]), torch.ones(count).half(), (2, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_indices_that_are_no_integers_are_refused(kind, dtype):
    values, ones = torch.ones(2).half(), torch.tensor([0, 1], dtype=dtype)
    with pytest.raises(TypeError, match="col_indices must be integers, not"):
        kind.from_csr(torch.tensor([0, 1, 2]), ones, values, (2, 5))
    with pytest.raises(TypeError, match="crow_indices must be integers, not"):
        kind.from_csr(torch.tensor([0, 1, 2]).to(dtype), torch.tensor([0, 1]), values, (2, 5))
    with pytest.raises(TypeError, match="indices must be integers, not"):
        kind.from_coo(torch.stack([ones, ones]), values, (2, 5))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (-2, 5)])
def test_shapes_without_elements_are_refused(kind, shape):
    nothing = torch.zeros(2, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match="no elements"):
        kind.from_coo(nothing, torch.ones(0).half(), shape)
    with pytest.raises(ValueError, match="no elements"):
        kind.from_csr(nothing[0], nothing[1], torch.ones(0).half(), shape)
    with pytest.raises(TypeError, match="integer"):
        kind.from_coo(nothing, torch.ones(0).half(), (2.0, 5))


def test_other_dtypes_and_empty_shapes_are_refused(kind):
    with pytest.raises(TypeError, match="float16"):
        kind.from_dense(torch.ones(2, 2))
    with pytest.raises(ValueError, match="a matrix on meta; it must be on one of cpu, cuda"):
        kind.from_dense(torch.ones(2, 2, device="meta").half())
    with pytest.raises(TypeError, match="2-D"):
        kind.from_dense(torch.ones(2).half())
    with pytest.raises(ValueError, match="no elements"):
        kind.from_dense(torch.ones(0, 2).half())
    with pytest.raises(TypeError, match="float16"):
        kind.from_csr(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, 1))


def change(array, index, value):
    changed = array.clone()
    changed.view(-1)[index] = value
    return changed


def _misaligned(data):
    return torch.cat([data.new_zeros(1), data.flatten()])[1:].view(data.shape)


TAMPERED = {
    "truncated data": (lambda w: {"data": w.data[:-1]}, "offsets must rise from 0 to {last}, not from 0 to {end}"),
    "narrow data": (lambda w: {"data": w.data[:, :-1].contiguous()}, "it must have"),
    "not aligned": (lambda w: {"data": _misaligned(w.data)}, "aligned to 16 bytes"),
    "truncated offsets": (lambda w: {"offsets": w.offsets[:-1]}, "offsets has shape"),
    "falling offsets": (lambda w: {"offsets": change(w.offsets, 1, int(w.offsets[2]) + 1)}, "at 2 they fall from"),
    "first offset": (lambda w: {"offsets": change(w.offsets, 0, 1)}, "offsets must rise from 0 to {end}, not from 1"),
    "moved offset": (lambda w: {"offsets": change(w.offsets, 1, int(w.offsets[1]) - 1)}, "tile [01], from row 0 and"),
    "another shape": (lambda w: {"shape": (300, 257)}, "offsets has shape"),
    "fewer columns": (lambda w: {"shape": (200, 66)}, r"tile [01], from row 0 and .* lies outside the matrix"),
    "fewer rows": (lambda w: {"shape": (194, 100)}, r"tile \d, from row (128|192) and .* lies outside the matrix"),
    "no rows": (lambda w: {"shape": (0, 100)}, "no elements"),
    "other dtype": (lambda w: {"data": w.data.long()}, "int32"),
    "other device": (lambda w: {"offsets": w.offsets.to("meta")}, "meta"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_tampered_container_is_refused(kind, case):
    tamper, message = TAMPERED[case]
    matrix = kind.from_dense(random_sparse(200, 100, 0.5))
    ends = {"{end}": str(len(matrix.data)), "{last}": str(len(matrix.data) - 1)}
    for name, value in ends.items():
        message = message.replace(name, value)
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(matrix, **tamper(matrix))


@pytest.mark.gpu
@pytest.mark.parametrize("repeated", [False, True])
def test_conversion_on_a_gpu_gives_the_same_container(kind, repeated):
    """From dense, CSR and COO; with every third element there twice, in halves."""
    w = random_sparse(1000, 777, 0.3)
    coo = w.to_sparse_coo().coalesce()
    indices, values = coo.indices(), coo.values().clone()
    if repeated:
        values[::3] /= 2
        indices, values = torch.cat([indices, indices[:, ::3]], 1), torch.cat([values, values[::3]])
        w = torch.zeros(w.shape).index_put_(tuple(indices), values.float(), accumulate=True).half()
    order = indices[0].argsort(stable=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.long), indices[0].bincount(minlength=1000).cumsum(0)])
    here = kind.from_dense(w)
    for there in (
        kind.from_dense(w.cuda()),
        kind.from_csr(crow.cuda(), indices[1][order].cuda(), values[order].cuda(), w.shape),
        kind.from_coo(indices.cuda(), values.cuda(), w.shape),
    ):
        assert torch.equal(here.data, there.data.cpu())
        assert torch.equal(here.offsets, there.offsets.cpu())
        assert torch.equal(there.to_dense().cpu(), w)


@pytest.mark.gpu
def test_the_largest_published_layer_converts_in_bounded_memory(kind):
    w = torch.randn(49152, 12288, dtype=torch.float16, device="cuda")
    w.masked_fill_(torch.rand(w.shape, dtype=torch.float16, device="cuda") < 0.5, 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    matrix = kind.from_dense(w)
    assert torch.cuda.max_memory_allocated() - before < 2 * matrix.nbytes + 2**31
    assert torch.equal(matrix.to_dense(), w)
