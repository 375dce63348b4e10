"""compute-sanitizer over the kernels on their smallest shapes: no stray access, no race in shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from harness.paths import ROOT

SANITIZER = shutil.which("compute-sanitizer")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer, of the CUDA toolkit, is not installed"),
]
FOUND = 9
# Some tens of rows each, with edges on every side: all kernels of attention, SpMM, expansion, block patterns and maps.
ATTENTION = "causal_is_aligned_bottom_right or empty_rows or keys_past_the_lengths or statistics_are_those"
SMALLEST = f"{ATTENTION} or test_smallest or test_every_value"
# Flash-LLM's take minutes, so in parts that can run side by side.
FLASH_LLM = (
    *("sm_80 and two_of_four", "sm_80 and not two_of_four", "sm_70", "of_each_size"),
    *(f"not sm_80 and not sm_70 and not of_each_size and {which}" for which in ("two_of_four", "not two_of_four")),
)
PARTS = [("spark_attention", ""), ("sparse_training", ""), *(("flash_llm", part) for part in FLASH_LLM)]
STRAY = """
import numpy as np, torch
from impl.cuda.launch import launch
from impl.flash_llm.kernels.plan import REDUCE
partials, y = torch.zeros(2, 1, device="cuda")
launch(REDUCE, (64, 1, 1), (partials, y, np.int64(1 << 24), np.int32(1)))
torch.cuda.synchronize()
"""


def sanitize(tool: str, *command: str) -> subprocess.CompletedProcess[str]:
    """`command` under `tool`; exit code FOUND where it finds something. Each tensor is an allocation of its own."""
    options = ["--tool", tool, "--report-api-errors", "no", "--error-exitcode", str(FOUND), "--print-limit", "5"]
    return subprocess.run(
        [SANITIZER, *options, sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("system", "part"), PARTS, ids=[" ".join(filter(None, part)) for part in PARTS])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_kernels_are_clean(tool, system, part):
    chosen = f"({SMALLEST}) and {part}" if part else SMALLEST
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "-k", chosen, f"tests/impl/{system}"]
    done = sanitize(tool, *tests)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_a_stray_access_is_found():
    done = sanitize("memcheck", "-c", STRAY)
    assert done.returncode == FOUND, done.stdout[-4000:]
    assert "Invalid __global__" in done.stdout
