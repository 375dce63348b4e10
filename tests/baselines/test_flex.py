"""FlexAttention's masks, on the CPU without compiling: the mask is ours, the kernel is not."""

from __future__ import annotations

import pytest
import torch

from harness.contender import discover
from harness.ops import OPS
from tests.baselines.gating import CASES, CPU, through_the_gate

FORWARD = [
    (op, fields)
    for op in ("attention", "block_sparse_attention")
    for fields in CASES[op]
    if fields["direction"] == "forward"
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("op", "fields"), FORWARD)
def test_masks_select_the_right_keys(op, fields, monkeypatch):
    contender, params = discover()[op]["flex_attention"], OPS[op].Params(**fields)
    if reason := contender.unsupported(params, CPU):
        pytest.skip(reason)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    _, verdict = through_the_gate(contender, params, CPU)
    assert verdict.passed, verdict.reason
