"""SparseLinear in the place of nn.Linear: values, shapes, state dicts, the dense path, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from impl.flash_llm import linear as linear_module
from impl.flash_llm.choice import choose_format
from impl.flash_llm.formats import Bitmap, TiledCSL, TwoOfFour
from impl.flash_llm.linear import SparseLinear
from tests.impl.flash_llm.devices import A100, VOLTA
from tests.impl.flash_llm.matrices import assert_is_product, random_sparse


def dense_layer(out_features=130, in_features=100, bias=True, density=0.3):
    layer = nn.Linear(in_features, out_features, bias=bias, dtype=torch.float16).requires_grad_(False)
    layer.weight.copy_(random_sparse(out_features, in_features, density))
    return layer


def assert_is_layer(sparse, layer, x):
    """Without its bias the product, element by element against float64; with it that, and the bias added."""
    product = SparseLinear(sparse.weight)(x)
    assert_is_product(product.reshape(-1, layer.out_features).T, layer.weight, x.reshape(-1, layer.in_features).T)
    assert torch.equal(sparse(x), product if layer.bias is None else product + layer.bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("leading", [(), (1,), (7,), (2, 3), (2, 1, 5)])
def test_replaces_a_linear_layer(kind, bias, leading):
    layer, x = dense_layer(bias=bias), torch.randn(*leading, 100).half()
    sparse = SparseLinear.from_linear(layer, kind)
    y = sparse(x)
    assert y.shape == (*leading, 130)
    assert y.is_contiguous()
    assert_is_layer(sparse, layer, x)


def test_no_rows(kind):
    assert SparseLinear.from_linear(dense_layer(), kind)(torch.empty(0, 4, 100).half()).shape == (0, 4, 130)


@pytest.mark.parametrize(
    ("density", "kind"), [(0.03, TwoOfFour), (0.2, TwoOfFour), (0.3, TwoOfFour), (0.4, Bitmap), (0.5, Bitmap)]
)
def test_takes_the_format_of_the_rule(density, kind):
    layer = dense_layer(512, 512, density=density)
    assert type(SparseLinear.from_linear(layer).weight) is kind


def test_takes_a_format_that_the_gpu_has_a_kernel_for():
    assert choose_format(3500, (100, 100), A100) is TwoOfFour
    assert choose_format(3501, (100, 100), A100) is Bitmap
    assert choose_format(3500, (100, 100), VOLTA) is TiledCSL
    with pytest.raises(NotImplementedError, match=r"compute capability \(6, 0\)"):
        choose_format(5000, (100, 100), dataclasses.replace(VOLTA, capability=(6, 0)))


@pytest.mark.parametrize("bias", [False, True])
def test_many_rows_take_the_dense_path_and_few_do_not(kind, bias, monkeypatch):
    layer = dense_layer(bias=bias)
    sparse = SparseLinear.from_linear(layer, kind)
    few, many = torch.randn(sparse.dense_from - 1, 100).half(), torch.randn(1, sparse.dense_from, 100).half()
    assert (sparse.path(len(few)), sparse.path(many.shape[1])) == ("sparse", "dense")
    with monkeypatch.context() as patch:
        patch.setattr(linear_module, "expand", lambda *_: pytest.fail("expanded"))
        assert_is_layer(sparse, layer, few)
    with monkeypatch.context() as patch:
        patch.setattr(linear_module, "spmm", lambda *_: pytest.fail("multiplied sparse"))
        assert torch.equal(sparse(many), layer(many))


def test_says_what_it_holds(kind):
    sparse = SparseLinear.from_linear(dense_layer(), kind)
    text = repr(sparse)
    for part in (
        f"format={kind.name}",
        f"bytes={sparse.weight.nbytes}",
        f"dense_from={sparse.dense_from}",
        "bias=True",
    ):
        assert part in text


def test_state_dict_comes_back_whatever_the_layer_held(kind):
    saved = SparseLinear.from_linear(dense_layer(density=0.5), kind)
    for other in (TiledCSL, Bitmap):
        loaded = SparseLinear.from_linear(dense_layer(density=0.1), other)
        state = copy.deepcopy(saved.state_dict())
        loaded.load_state_dict(state)
        state[f"{kind.name}_data"].fill_(-1)  # what was loaded is a copy
        x = torch.randn(5, 100).half()
        assert torch.equal(loaded(x), saved(x))
        assert (loaded.kind, loaded.dense_from) == (saved.kind, saved.dense_from)
        assert loaded.state_dict().keys() == saved.state_dict().keys()


def test_state_dict_within_a_model(kind):
    def model(density):
        layers = [SparseLinear.from_linear(dense_layer(100, 100, density=density), kind) for _ in range(2)]
        return nn.Sequential(layers[0], nn.ReLU(), layers[1])

    saved, loaded = model(0.5), model(0.1)
    loaded.load_state_dict(copy.deepcopy(saved).state_dict())
    x = torch.randn(5, 100).half()
    assert torch.equal(loaded(x), saved(x))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda state, kind: state.pop(f"{kind}_offsets"), "Missing key"),
        (lambda state, kind: state.pop("bias"), "Missing key"),
        (lambda state, kind: state[f"{kind}_data"].fill_(-1), "tile 0, from row 0"),
        (lambda state, kind: state.update({f"{kind}_data": state[f"{kind}_data"][:-1]}), "offsets must rise from 0 to"),
        (
            lambda state, kind: state.update(bitmap_data=torch.zeros(1), tiled_csl_data=torch.zeros(1)),
            "several formats",
        ),
    ],
)
def test_a_tampered_state_dict_is_refused(kind, tamper, message):
    sparse = SparseLinear.from_linear(dense_layer(), kind)
    state = copy.deepcopy(sparse.state_dict())
    tamper(state, kind.name)
    with pytest.raises(RuntimeError, match=message):
        sparse.load_state_dict(state)


def test_another_width_or_bias_or_dtype_is_refused(kind):
    sparse = SparseLinear.from_linear(dense_layer(), kind)
    with pytest.raises(ValueError, match=r"x must be \[..., 100\], not \[3, 99\]"):
        sparse(torch.randn(3, 99).half())
    with pytest.raises(ValueError, match=r"x must be \[..., 100\], not \[\]"):
        sparse(torch.tensor(1.0).half())
    for rows in (0, 3, sparse.dense_from):
        with pytest.raises(TypeError, match="x must be float16"):
            sparse(torch.randn(rows, 100))
    with pytest.raises(ValueError, match=r"bias must be \[130\] float16, not \[100\]"):
        SparseLinear(sparse.weight, torch.zeros(100).half())
    with pytest.raises(TypeError, match="float16"):
        SparseLinear.from_linear(nn.Linear(8, 8))


@pytest.mark.parametrize("rows", [3, 300])
def test_a_gradient_is_refused_and_no_grad_is_not(kind, rows):
    sparse, x = SparseLinear.from_linear(dense_layer(), kind), torch.randn(rows, 100).half().requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradient"):
        sparse(x)
    with torch.no_grad():
        assert not sparse(x).requires_grad
    assert not list(sparse.parameters())


@pytest.mark.parametrize("rows", [3, 300])
def test_autocast_casts_x(kind, rows):
    sparse, x = SparseLinear.from_linear(dense_layer(), kind), torch.randn(rows, 100)
    with torch.autocast("cpu", torch.float16):
        y = sparse(x)
    assert torch.equal(y, sparse(x.half()))


@pytest.mark.parametrize("rows", [3, 300])
def test_compiles_whole(kind, rows):
    sparse, x = SparseLinear.from_linear(dense_layer(), kind), torch.randn(rows, 100).half()
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), sparse(x))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 300])
def test_in_a_cuda_graph(kind, rows):
    layer = dense_layer(1000, 3000)
    sparse, x = SparseLinear.from_linear(layer, kind).cuda(), torch.randn(rows, 3000).half().cuda()
    sparse(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = sparse(x)
    x.copy_(torch.randn(rows, 3000))
    graph.replay()
    assert torch.equal(y, sparse(x))
