"""What is special to the Volta forward, on the emulator: its two accumulators, its shared memory, its variants."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from impl.cuda import emulator
from impl.spark_attention import reference
from impl.spark_attention.kernels.sm70 import FORWARD, forward_kernel
from tests.impl.spark_attention.backends import emulated, kernel_call

pytestmark = emulated
each_kernel = pytest.mark.parametrize(
    ("head_dim", "accumulate"), list(itertools.product([64, 59, 128, 111], ["fp32", "fp16"]))
)


def random_qkv(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(shape).half() for _ in range(3))


def call(*tensors: Tensor, accumulate: str, causal: bool = True) -> tuple:
    return kernel_call(*tensors, "sm_70", causal=causal, accumulate=accumulate)


def forward(*tensors: Tensor, accumulate: str, causal: bool = True, **options) -> tuple[Tensor, Tensor]:
    kernel_and_arguments, outputs = call(*tensors, accumulate=accumulate, causal=causal)
    emulator.launch(*kernel_and_arguments, **options)
    return outputs


def test_head_dim_alignment_and_accumulator_choose_among_all_kernels():
    chosen = {
        call(*random_qkv(1, 1, 1, head_dim), accumulate=accumulate)[0][0]
        for head_dim, accumulate in itertools.product([8, 59, 64, 72, 111, 128], ["fp32", "fp16"])
    }
    assert chosen == set(FORWARD)


@each_kernel
def test_no_races_and_the_same_bits_in_any_order(head_dim, accumulate):
    tensors = random_qkv(1, 2, 150, head_dim)
    first = forward(*tensors, accumulate=accumulate, check_races=True)
    for seed in range(1, 4):
        again = forward(*tensors, accumulate=accumulate, seed=seed)
        assert all(map(torch.equal, first, again))


@each_kernel
def test_tiles_meet_no_bank_conflicts(head_dim, accumulate):
    counts = emulator.count(*call(*random_qkv(1, 1, 128, head_dim), accumulate=accumulate)[0])
    wide = [c for c in counts if c.bytes == 16 and c.instruction in ("ld.shared", "st.shared")]
    assert {c.instruction for c in wide} == {"ld.shared", "st.shared"}
    assert [c for c in wide if c.wavefronts != c.ideal_wavefronts] == []


def check_fp16(q: Tensor, k: Tensor, v: Tensor, causal: bool, within: float = 1.1) -> None:
    """Hold the error to that of the reference that rounds alike; the gate is for it a matter of luck at a few keys.

    Their sums differ in order, so the root mean squares are compared: the largest error is luck again.
    """
    options = {"causal": causal, "softmax_scale": q.shape[-1] ** -0.5}
    right, lse_right = reference.attention_forward(q.double(), k.double(), v.double(), **options)
    rounded, lse_rounded = reference.attention_forward(q, k, v, accumulate="fp16", **options)
    out, lse = forward(q, k, v, accumulate="fp16", causal=causal)
    ours, theirs = (x.double() - right for x in (out, rounded))
    assert ours.square().mean() <= within**2 * theirs.square().mean()
    torch.testing.assert_close(lse, lse_rounded, rtol=0, atol=1e-3)
    assert torch.equal(lse.isinf(), lse_right.isinf())


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_probabilities_through_shared_memory_are_the_same(head_dim, accumulate):
    tensors = random_qkv(1, 1, 150, head_dim)
    in_registers = forward(*tensors, accumulate=accumulate)
    (_, grid, arguments), outputs = call(*tensors, accumulate=accumulate)
    kernel = forward_kernel(head_dim, aligned=True, accumulate_fp16=accumulate == "fp16", p_through_shared=True)
    counts = emulator.count(kernel, grid, arguments)
    assert all(map(torch.equal, in_registers, outputs))
    moves = [c for c in counts if "probabilities_sm70" in c.line and c.instruction in ("ld.shared", "st.shared")]
    assert {c.instruction for c in moves} == {"ld.shared", "st.shared"}
    assert [c for c in moves if c.wavefronts != c.ideal_wavefronts] == []


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (33, 129), (150, 97)])
@pytest.mark.parametrize("head_dim", [40, 64, 111, 128])
def test_fp16_accumulators_err_as_their_roundings_do(head_dim, seqlen_q, seqlen_k, causal):
    q, k, v = random_qkv(1, 2, max(seqlen_q, seqlen_k), head_dim)
    check_fp16(q[:, :, :seqlen_q], k[:, 1:, :seqlen_k], v[:, 1:, :seqlen_k], causal)


def test_fp16_accumulators_scale_q_before_the_product():
    """q = k = 35 at head dim 128 is 156,800, past the fp16 range; a sum of 16 products of q / 16 is not.

    All probabilities are equal, so that the order of the sums shows in every row: 1.2 to 1.3 times the reference's.
    """
    q, _, v = random_qkv(1, 16, 40, 128)
    check_fp16(q.fill_(35), q, v, causal=False, within=1.5)
