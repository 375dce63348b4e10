"""Tiles by the copy engine and products of a warpgroup against plain matrix products, on the emulator and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from impl.cuda.tensor_map import TensorMap

hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="wgmma needs a Hopper GPU"
)
pytestmark = hopper


def _integers(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Small enough for every sum to be exact, and for the scores to be exact in bfloat16."""
    return torch.randint(-1, 2, (rows, columns)).to(dtype)


def _run(launch, test_kernel, a, b, v, n, d, row):
    kernel = test_kernel(
        "wgmma.cu", "multiply", 128, "sm_90a", 8192 + n * 128 * (1 + d // 64), KEYS=n, DIM=d,
        BFLOAT16=int(a.dtype == torch.bfloat16),
    )  # fmt: skip
    scores, out = torch.full((64, n), torch.nan), torch.full((64, d), torch.nan)
    maps = [TensorMap(t[None, None], rows) for t, rows in ((a, 64), (b, n), (v, n))]
    launch(kernel, (1, 1, 1), [*maps, scores, out, np.int32(row)])
    return scores, out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "d"), [(64, 64), (128, 64), (128, 128), (176, 128)])
def test_products_of_tiles(launch, test_kernel, n, d, dtype):
    a, b, v = _integers(64, 64, dtype), _integers(n, 64, dtype), _integers(n, d, dtype)
    scores, out = _run(launch, test_kernel, a, b, v, n, d, 0)
    assert torch.equal(scores, a.float() @ b.float().T)
    assert torch.equal(out, scores @ v.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_product_of_two_tiles_with_k_as_rows(launch, test_kernel, dtype):
    keys = 128
    a, b = _integers(keys, 64, dtype), _integers(keys, 64, dtype)
    kernel = test_kernel(
        "wgmma.cu", "multiply_transposed", 128, "sm_90a", 2 * keys * 128, KEYS=keys, DIM=64,
        BFLOAT16=int(dtype == torch.bfloat16),
    )  # fmt: skip
    product = torch.full((64, 64), torch.nan)
    launch(kernel, (1, 1, 1), [TensorMap(a[None, None], keys), TensorMap(b[None, None], keys), product])
    assert torch.equal(product, a.float().T @ b.float())


def test_elements_outside_the_tensor_are_zero(launch, test_kernel):
    a, b, v = (_integers(rows, 72, torch.half)[:, :columns] for rows, columns in ((50, 40), (90, 40), (131, 56)))
    scores, out = _run(launch, test_kernel, a, b, v, 128, 64, 5)
    expected = torch.zeros(64, 128)
    expected[:45, :85] = a[5:].float() @ b[5:].float().T
    assert torch.equal(scores, expected)
    assert torch.equal(out[:, :56], expected[:, :126] @ v[5:].float())
    assert not out[:, 56:].any()


@pytest.mark.parametrize("columns", [8, 16, 32, 64])
def test_narrow_tiles(launch, test_kernel, columns):
    """A tile of X that crosses the tensor's last row and column, its rows as wide as the product."""
    shared_bytes = 64 * 2 * (columns + 64)
    kernel = test_kernel("narrow_wgmma.cu", "multiply_narrow", 128, "sm_90a", shared_bytes, COLUMNS=columns)
    a, x = _integers(64, 64, torch.half), _integers(70, 72, torch.half)
    out = torch.full((64, columns), torch.nan)
    launch(kernel, (1, 1, 1), [TensorMap(x[None, None], 64, columns), a, out, np.int32(9), np.int32(16)])
    tile = torch.zeros(64, columns)
    tile[:61, : 72 - 16] = x[9:, 16 : 16 + columns].float()
    assert torch.equal(out, a.float() @ tile)


def _sparse_operands(a: torch.Tensor, places: torch.Tensor, selector: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Registers int32 [2, 128, 4] and metadata int32 [2, 128] of the threads, for A [64, 64] of which the elements at
    `places` [64, 16, 2] of each four are stored; the metadata of lanes that do not count are out of order."""
    stored = a.view(64, 16, 4).gather(2, places).view(torch.int32).squeeze(2)
    bits = (places[..., 0] | places[..., 1] << 2).int()
    registers, metadata = torch.empty(2, 128, 4, dtype=torch.int32), torch.zeros(2, 128, dtype=torch.int32)
    for step in range(2):
        for thread in range(128):
            row, member = thread // 32 * 16 + thread % 32 // 4, thread % 4
            for i in range(4):
                registers[step, thread, i] = stored[row + i % 2 * 8, step * 8 + member + i // 2 * 4]
            half = member - 2 * selector
            if half in (0, 1):
                for i in range(8):
                    place = int(bits[row + i // 4 * 8, step * 8 + half * 4 + i % 4])
                    metadata[step, thread] |= place << 4 * i if i < 7 else (place ^ 8) - 8 << 28
    return registers, metadata


@pytest.mark.parametrize("selector", [0, 1])
@pytest.mark.parametrize("columns", [8, 16, 32, 64])
def test_sparse(launch, test_kernel, columns, selector):
    """Any two of each four neighbours in a row of A are stored; what is not stored is not multiplied."""
    kernel = test_kernel(
        "sparse_wgmma.cu", "multiply_sparse", 128, "sm_90a", 64 * 2 * columns, COLUMNS=columns, LANES=selector
    )
    a, x = _integers(64, 64, torch.half), _integers(64, columns, torch.half)
    places = torch.rand(64, 16, 4).topk(2).indices.sort(2).values
    out = torch.full((64, columns), torch.nan)
    operands = _sparse_operands(a, places, selector)
    launch(kernel, (1, 1, 1), [TensorMap(x[None, None], 64, columns), *operands, out])
    kept = torch.zeros(64, 16, 4).scatter_(2, places, 1).view(64, 64)
    assert torch.equal(out, (a * kept).float() @ x.float())
