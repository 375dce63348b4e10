"""What is special to the sm_80 forward, on the emulator: its barriers and its shared memory."""

from __future__ import annotations

import pytest
import torch

from impl.cuda import emulator
from tests.impl.spark_attention.backends import emulated, kernel_call

pytestmark = emulated
each_head_dim = pytest.mark.parametrize("head_dim", [64, 59, 128, 111])


def call(seqlen: int, head_dim: int) -> tuple:
    tensors = (torch.randn(1, 1, seqlen, head_dim).half() for _ in range(3))
    return kernel_call(*tensors, "sm_80", causal=True)


@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    kernel_and_arguments, outputs = call(150, head_dim)
    emulator.launch(*kernel_and_arguments, check_races=True)
    first = [t.clone() for t in outputs]
    for seed in range(1, 3):
        emulator.launch(*kernel_and_arguments, seed=seed)
        assert all(map(torch.equal, first, outputs))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_meet_no_bank_conflicts(head_dim):
    counts = emulator.count(*call(128, head_dim)[0])
    shared = [c for c in counts if c.ideal_wavefronts]
    assert {c.instruction for c in shared} >= {"cp.async, to shared", "ldmatrix.x4", "ldmatrix.x4.trans", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []
