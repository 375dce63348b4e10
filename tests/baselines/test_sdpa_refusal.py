"""What PyTorch says when one SDPA backend does not take a case."""

from __future__ import annotations

import pytest

from baselines.attention.sdpa import SdpaCudnn, SdpaEfficient
from harness.contender import Unsupported
from harness.ops import OPS
from tests.baselines.gating import CPU


@pytest.mark.parametrize("contender", [SdpaCudnn(), SdpaEfficient()], ids=lambda c: c.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_backend_that_refuses_is_unsupported_with_advice(contender, direction):
    params = OPS["attention"].Params(batch=1, num_heads=1, seqlen=8, head_dim=16, direction=direction)
    with pytest.raises(Unsupported, match=r"^PyTorch refuses it: .+; use sdpa_math$") as caught:
        contender.prepare(params, OPS["attention"].inputs(params, "cpu"), CPU)  # neither exists on a CPU
    assert "\n" not in str(caught.value)
