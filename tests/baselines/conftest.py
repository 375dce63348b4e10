from __future__ import annotations

import pytest
import torch

from harness.contender import Target


@pytest.fixture(scope="session")
def gpu() -> Target:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Target("cuda", properties.name, (properties.major, properties.minor), properties.total_memory)
