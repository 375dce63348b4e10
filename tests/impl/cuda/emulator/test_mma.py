"""Every mma and ldmatrix wrapper against plain matrix products, on the emulator and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from impl.cuda import emulator
from tests.impl.cuda.emulator.fragments import m8n8k4_a, m8n8k4_b, m8n8k4_d, m16n8_a, m16n8_b, m16n8_d

_LAYOUTS = ["row_row", "row_col", "col_row", "col_col"]


def _multiply(launch, kernel, places, operands, dtype):
    """The product of `operands` a, b, c by one mma, as a float64 array shaped as c."""
    a, b, c = (
        torch.from_numpy(np.ascontiguousarray(matrix[place])).to(kind)
        for matrix, place, kind in zip(operands, places, dtype, strict=True)
    )
    launch(kernel, (1, 1, 1), [a, b, c])
    result = np.full(operands[2].shape, np.nan)
    result[places[2]] = c.double().numpy()
    return result


def _m8n8k4(launch, test_kernel, layout, fp32, operands):
    a_layout, b_layout = layout.split("_")
    macros = {"ACCUMULATOR": "float" if fp32 else "unsigned", "A_REGISTERS": 2, "B_REGISTERS": 2}
    macros |= {"D_REGISTERS": 8 if fp32 else 4, "MULTIPLY": f"mma_m8n8k4_{layout}(d, a, b)", "MMA_ARCH": 70}
    kernel = test_kernel("mma.cu", "multiply", 32, "sm_70", **macros)
    places = m8n8k4_a(a_layout), m8n8k4_b(b_layout), m8n8k4_d(fp32)
    return _multiply(launch, kernel, places, operands, (torch.half, torch.half, torch.float if fp32 else torch.half))


def _m16n8(launch, test_kernel, wrapper, k, operand_type, operands):
    b = "b[0], b[1]" if k == 16 else "b[0]"
    macros = {"ACCUMULATOR": "float", "A_REGISTERS": k // 4, "B_REGISTERS": k // 8, "D_REGISTERS": 4}
    kernel = test_kernel("mma.cu", "multiply", 32, MULTIPLY=f"{wrapper}(d, a, {b})", MMA_ARCH=80, **macros)
    places = m16n8_a(k), m16n8_b(k), m16n8_d()
    return _multiply(launch, kernel, places, operands, (operand_type, operand_type, torch.float))


def _integers(*shape):
    """Small enough for every sum to be exact in every format."""
    return np.random.default_rng().integers(-8, 9, shape).astype(float)


@pytest.mark.parametrize("fp32", [True, False], ids=["fp32", "fp16"])
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_m8n8k4_layout(launch, test_kernel, layout, fp32):
    a, b, c = _integers(4, 8, 4), _integers(4, 4, 8), _integers(4, 8, 8)
    np.testing.assert_array_equal(_m8n8k4(launch, test_kernel, layout, fp32, (a, b, c)), a @ b + c)


@pytest.mark.parametrize(
    ("wrapper", "k", "operand_type"),
    [
        ("mma_m16n8k16_f16", 16, torch.half),
        ("mma_m16n8k16_bf16", 16, torch.bfloat16),
        ("mma_m16n8k8_f16", 8, torch.half),
    ],
)
def test_m16n8_layout(launch, test_kernel, wrapper, k, operand_type):
    a, b, c = _integers(16, k), _integers(k, 8), _integers(16, 8)
    np.testing.assert_array_equal(_m16n8(launch, test_kernel, wrapper, k, operand_type, (a, b, c)), a @ b + c)


def _sparse(launch, test_kernel, selector, a, places, b, c):
    """a b + c by mma.sp: of each four columns of A [16, 32] the two at `places` [16, 8, 2].

    Lanes that are not asked for metadata hold other, valid ones.
    """
    stored = np.take_along_axis(a.reshape(16, 8, 4), places, 2).reshape(16, 16)
    bits = (places[..., 0] | places[..., 1] << 2).reshape(2, 8, 2, 4)  # lower half, row, half of k, group in it
    words = (bits << np.arange(0, 16, 4)).sum(3)
    words = words[0] | words[1] << 16  # [row, half of k]
    metadata = np.full((8, 2, 2), 0x44444444, np.uint32)
    metadata[:, selector] = words
    fragments = [
        torch.from_numpy(np.ascontiguousarray(matrix[place])).to(kind)
        for matrix, place, kind in (
            (stored, m16n8_a(16), torch.half), (b, m16n8_b(32), torch.half), (c, m16n8_d(), torch.float)
        )
    ]  # fmt: skip
    kernel = test_kernel("mma_sp.cu", "multiply_sparse", 32, LANES=selector)
    launch(kernel, (1, 1, 1), [*fragments[:2], torch.from_numpy(metadata.view(np.int32).ravel()), fragments[2]])
    result = np.full(c.shape, np.nan)
    result[m16n8_d()] = fragments[2].double().numpy()
    return result


_PAIRS = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])


@pytest.mark.parametrize("selector", [0, 1])
def test_sparse_layout(launch, test_kernel, selector):
    places = _PAIRS[np.random.default_rng().integers(0, 6, (16, 8))]
    a, b, c = _integers(16, 32), _integers(32, 8), _integers(16, 8)
    kept = np.zeros((16, 8, 4))
    np.put_along_axis(kept, places, 1, 2)
    result = _sparse(launch, test_kernel, selector, a, places, b, c)
    np.testing.assert_array_equal(result, a * kept.reshape(16, 32) @ b + c)


def test_sparse_multiplies_stored_elements_only(launch, test_kernel):
    """Not even a zero in place of the others: an infinity in their columns does not show."""
    places = np.broadcast_to(_PAIRS[1], (16, 8, 2))
    a, b = _integers(16, 32), _integers(32, 8)
    a[:, 1::2] = 0
    expected = a @ b
    b[1::4], b[3::4] = np.inf, np.nan
    np.testing.assert_array_equal(_sparse(launch, test_kernel, 0, a, places, b, np.zeros((16, 8))), expected)


@pytest.mark.parametrize("launch", ["emulated"], indirect=True)
@pytest.mark.parametrize("wrong", [[2, 1], [3, 3]])
def test_sparse_places_out_of_order_are_a_fault(launch, test_kernel, wrong):
    places = np.broadcast_to(_PAIRS[0], (16, 8, 2)).copy()
    places[13, 6] = wrong
    with pytest.raises(emulator.EmulatedFault, match="are not in order"):
        _sparse(launch, test_kernel, 0, _integers(16, 32), places, _integers(32, 8), _integers(16, 8))


@pytest.mark.parametrize("fp32", [True, False], ids=["fp32", "fp16"])
def test_m8n8k4_rounding(launch, test_kernel, fp32):
    """The sum of exact products and accumulator, within two units in the last place of the largest addend."""
    a, b, c = (
        np.random.default_rng().normal(size=s).astype(np.float16).astype(float)
        for s in [(4, 8, 4), (4, 4, 8), (4, 8, 8)]
    )
    result = _m8n8k4(launch, test_kernel, "row_col", fp32, (a, b, c))
    addends = np.maximum(np.abs(c), np.max(np.abs(a[..., None] * b[:, None]), axis=2))
    unit = 2.0 ** -(23 if fp32 else 10)
    assert np.all(np.abs(result - (a @ b + c)) <= 2 * unit * 2 ** np.ceil(np.log2(addends)))


@pytest.mark.parametrize("transposed", [False, True])
def test_load_matrix(launch, test_kernel, transposed):
    rows = torch.randint(0, 1 << 15, (4, 8, 8), dtype=torch.int16)
    fragments = torch.full((32, 4, 2), -1, dtype=torch.int16)
    load = "load_matrix_x4_transposed" if transposed else "load_matrix_x4"
    launch(test_kernel("load_matrix.cu", "load", 32, LOAD=load), (1, 1, 1), [rows, fragments])
    expected = (rows.mT if transposed else rows).reshape(4, 32, 2).transpose(0, 1)
    assert torch.equal(fragments, expected)
