"""One source on two machines: an emulated kernel and the same kernel on a GPU differ by the order of sums alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from impl.cuda import emulator
from impl.flash_llm.formats import FORMATS
from impl.flash_llm.kernels import Problem, choose_plan
from impl.spark_attention.kernels.forward import attention_forward
from tests.impl.flash_llm.devices import A100
from tests.impl.flash_llm.matrices import random_sparse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available())),
]
ULP = 2.0**-10  # of float16, relative; of a subnormal 2^-24
FLOAT32_ULP = 2.0**-23


def assert_equal_but_for_order(emulated: Tensor, kernel: Tensor, order: Tensor) -> None:
    """Both are rounded to float16 once, from sums at most `order` apart."""
    apart = (emulated.double() - kernel.double()).abs()
    assert (apart <= emulated.double().abs() * ULP + 2.0**-24 + order).all()
    assert (apart == 0).double().mean() > 0.9  # a sum seldom lies that near to a rounding boundary


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_forward_sm70(head_dim, causal):
    from impl.cuda.launch import launch

    q, k, v = (torch.randn(1, 2, 200, head_dim).half() for _ in range(3))
    options = {"causal": causal, "softmax_scale": head_dim**-0.5, "accumulate": "fp32", "kernel_arch": "sm_70"}
    emulated, lse = attention_forward(q, k, v, emulator.launch, **options)
    kernel, kernel_lse = (t.cpu() for t in attention_forward(q.cuda(), k.cuda(), v.cuda(), launch, **options))
    scores = q.double() @ k.double().mT * head_dim**-0.5
    if causal:
        scores.masked_fill_(torch.ones(200, 200).triu(1).bool(), -torch.inf)
    # A probability a float32 rounding apart may be rounded to the next float16.
    assert_equal_but_for_order(emulated, kernel, scores.softmax(-1) @ v.double().abs() * ULP)
    # A score is head_dim / 4 sums of four products, each of which a Tensor Core may cut off a unit in the last place
    # of what it adds to; the log-sum-exp is off by no more than the worst of its row's scores.
    products = q.double().abs() @ k.double().abs().mT * head_dim**-0.5
    order = products.masked_fill(scores.isinf(), 0).amax(-1) * head_dim / 4 * FLOAT32_ULP
    assert ((lse.double() - kernel_lse.double()).abs() <= order + (lse.double().abs() + 1) * 8 * FLOAT32_ULP).all()


@pytest.mark.parametrize("split_k", [1, 3])
def test_tiled_csl_sm80(split_k):
    from impl.cuda.launch import launch

    w, x = random_sparse(200, 500, 0.3), torch.randn(500, 16).half()
    weight = FORMATS["tiled_csl"].from_dense(w)
    plan = choose_plan("tiled_csl", Problem(200, 16, 500, weight.nbytes, weight.longest), A100, split_k)
    emulated = plan.multiply(weight.data, weight.offsets, x, 200, emulator.launch)
    kernel = plan.multiply(*(t.cuda() for t in (weight.data, weight.offsets, x)), 200, launch).cpu()
    assert_equal_but_for_order(emulated, kernel, w.double().abs() @ x.double().abs() * 500 * FLOAT32_ULP)
