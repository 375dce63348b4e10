"""What is special to the sm_90a forward: its barriers, tiles taken in turns, the tensors it takes; the rest is in
test_forward.py."""

from __future__ import annotations

import math

import pytest
import torch

from harness.ops import OPS
from impl.cuda import emulator
from impl.spark_attention.kernels.forward import forward_call
from impl.spark_attention.kernels.forward_sm90 import takes
from tests.impl.spark_attention.backends import emulated, kernel_call

OP = OPS["attention"]
each_head_dim = pytest.mark.parametrize("head_dim", [64, 128])


def _call(head_dim, **fields):
    params = OP.Params(**{"batch": 1, "head_dim": head_dim, "num_heads": 1, "causal": True} | fields)
    inputs = OP.inputs(params, "cpu")
    return kernel_call(inputs["q"], inputs["k"], inputs["v"], "sm_90a", causal=True)


@emulated
@each_head_dim
def test_no_races_and_the_same_bits_in_any_order(head_dim):
    call, outputs = _call(head_dim, seqlen=390)
    emulator.launch(*call, check_races=True)
    first = [t.clone() for t in outputs]
    emulator.launch(*call, seed=1)
    assert all(map(torch.equal, first, outputs))


@emulated
@each_head_dim
@pytest.mark.parametrize("seqlen_q", [390, 700], ids=["keys for all", "tiles without keys"])
def test_a_block_that_does_several_tiles_gives_the_same_bits(head_dim, seqlen_q):
    (kernel, grid, arguments), outputs = _call(head_dim, seqlen_q=seqlen_q, seqlen_k=390, num_heads=2)
    emulator.launch(kernel, grid, arguments)
    first = [t.clone() for t in outputs]
    for output in outputs:
        output.fill_(math.nan)
    emulator.launch(kernel, (2, 1, 1), arguments, check_races=True)
    assert all(map(torch.equal, first, outputs))


@emulated
@each_head_dim
def test_output_meets_no_bank_conflicts(head_dim):
    call, _ = _call(head_dim, seqlen=128)
    shared = [c for c in emulator.count(*call) if c.instruction in ("ld.shared", "st.shared") and c.bytes < 128]
    assert {c.instruction for c in shared} == {"ld.shared", "st.shared"}
    assert [c for c in shared if c.wavefronts != c.ideal_wavefronts] == []


def test_takes_only_what_the_copy_engine_can_load():
    good = torch.zeros(2, 2, 8, 64, dtype=torch.half)
    assert takes(good, good, good, good)
    bad = {
        "rows off 16 bytes": torch.zeros(2, 2, 8, 68, dtype=torch.half)[..., :64],
        "base off 16 bytes": torch.zeros(2, 2, 8, 72, dtype=torch.half)[..., 1:65],
        "last stride not one": torch.zeros(2, 2, 64, 8, dtype=torch.half).mT,
        "one head for all, by stride 0": torch.zeros(2, 1, 8, 64, dtype=torch.half).expand(2, 2, 8, 64),
        "no keys": torch.zeros(2, 2, 0, 64, dtype=torch.half),
    }
    assert [reason for reason, tensor in bad.items() if takes(good, tensor, good, good)] == []
    odd = torch.zeros(2, 2, 8, 60, dtype=torch.half)
    assert not takes(odd, odd, odd, odd)


@pytest.mark.parametrize("head_dim", [64, 60])
def test_the_sm_80_kernel_stands_in(head_dim):
    q, out = torch.zeros(2, 1, 2, 8, head_dim, dtype=torch.half)
    options = {"causal": False, "softmax_scale": 1.0, "arch": "sm_90a"}
    kernel, _, _ = forward_call(q, q, q, out, q.new_zeros(1, 2, 8, dtype=torch.float32), **options)
    assert kernel.arch == ("sm_90a" if head_dim == 64 else "sm_80")
