"""What is special to the sm_80 forward, on the emulator: its barriers and its shared memory."""

from __future__ import annotations

import math

import pytest
import torch

from impl.cuda import emulator
from impl.spark_attention.kernels.forward import empty_outputs, forward_arguments, forward_grid, select_kernel

pytestmark = pytest.mark.skipif(emulator.available() is not None, reason=str(emulator.available()))
each_head_dim = pytest.mark.parametrize("head_dim", [64, 59, 128, 111])


def call(seqlen: int, head_dim: int) -> tuple:
    """Kernel, grid and arguments of a causal forward; arguments 3 and 4 are out and lse, full of NaN."""
    q, k, v = (torch.randn(1, 1, seqlen, head_dim).half() for _ in range(3))
    out, lse = (t.fill_(math.nan) for t in empty_outputs(q))
    kernel = select_kernel(q, k, v, "fp32", "sm_80")
    return kernel, forward_grid(kernel, q), forward_arguments(q, k, v, out, lse, True, head_dim**-0.5)


@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    kernel, grid, arguments = call(150, head_dim)
    emulator.launch(kernel, grid, arguments, check_races=True)
    first = [t.clone() for t in arguments[3:5]]
    for seed in range(1, 3):
        emulator.launch(kernel, grid, arguments, seed=seed)
        assert all(map(torch.equal, first, arguments[3:5]))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_meet_no_bank_conflicts(head_dim):
    counts = emulator.count(*call(128, head_dim))
    shared = [c for c in counts if c.ideal_wavefronts]
    assert {c.instruction for c in shared} >= {"cp.async, to shared", "ldmatrix.x4", "ldmatrix.x4.trans", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []
