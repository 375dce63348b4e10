"""The plan counts rows, memory and minutes before anything runs, and pays for no torch import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.config import load_config, parse_config
from harness.contender import Target
from harness.energy import DEFAULT_PERIOD_S, TICKS
from harness.paths import ROOT
from harness.plan import plan_panel

CPU = Target("cpu", "a CPU")


@pytest.fixture(scope="module")
def smoke():
    return load_config(ROOT / "config/smoke.yaml")


def test_rows_are_cases_times_contenders(smoke):
    for name in smoke.panel_names():
        experiment, _, panel = name.partition("/")
        cases = smoke.cases(experiment, smoke.panel(experiment, panel))
        contenders = smoke.panel_contenders(experiment, smoke.panel(experiment, panel))
        assert plan_panel(smoke, name, CPU).rows == len(cases) * len(contenders)


def test_refused_rows_have_status_contender_and_reason(smoke):
    refused = plan_panel(smoke, "spmm/patterns", CPU).refused
    ((status, _contender, reason),) = [key for key in refused if key[1] == "semi_structured"]
    assert status == "unavailable"
    assert reason


def test_a_contender_that_fails_when_asked_is_a_crashed_row():
    spmm = {"op": "spmm", "question": "q", "baseline": "cublas", "contenders": ["cublas", "cannot_say"]}
    panel = {"name": "p", "title": "p", "each": {"m": 64, "k": 64, "n": 8, "sparsity": [0.5, 0.8]}}
    folder = str(ROOT / "tests/harness/contenders")
    raw = {
        "run": "t",
        "device": "cpu",
        "contender_folders": [folder],
        "experiments": {"e": {**spmm, "panels": [panel]}},
    }
    plan = plan_panel(parse_config(raw, "test"), "e/p", CPU)
    assert (plan.rows, dict(plan.refused)) == (4, {("crashed", "cannot_say", "RuntimeError: no such file"): 2})


def test_memory_is_the_largest_case(smoke):
    small = plan_panel(smoke, "spmm/small", CPU)
    op = smoke.cases("spmm", smoke.panel("spmm", "small"))[0].op
    largest = max(op.peak_bytes_estimate(c.params) for c in smoke.cases("spmm", smoke.panel("spmm", "small")))
    assert small.peak_bytes == largest


def test_longer_windows_and_energy_cost_minutes(smoke):
    name = "attention/forward"
    before = plan_panel(smoke, name, CPU).seconds
    longer = smoke.model_copy(update={"measure": smoke.measure.model_copy(update={"max_time_s": 1.0})})
    assert plan_panel(longer, name, CPU).seconds > 2 * before
    h200 = load_config(ROOT / "config/h200.yaml")
    gpu = Target("cuda", "NVIDIA H200", (9, 0), 140 * 2**30)
    slow = h200.model_copy(update={"energy": h200.energy.model_copy(update={"window_s": 100.0})})
    extra = plan_panel(slow, "spmm/opt_30b", gpu).seconds - plan_panel(h200, "spmm/opt_30b", gpu).seconds
    cells = [row for row in h200.rows("spmm/opt_30b") if row[1] in row[0].energy]
    assert extra == pytest.approx(len(cells) * h200.energy.trials * (100 - TICKS * DEFAULT_PERIOD_S))


def test_steps_of_sparse_training_take_as_long_as_they_did():
    """Within a factor of 2 of the panels' seconds on an H200; memory, of the largest case, from above."""
    h200 = load_config(ROOT / "config/h200.yaml")
    gpu = Target("cuda", "NVIDIA H200", (9, 0), 140 * 2**30)
    for panel, seconds in (("methods", 77), ("densities", 36)):
        plan = plan_panel(h200, f"sparse_training/{panel}", gpu)
        assert seconds / 2 < plan.seconds < seconds * 2
        assert 32.79 < plan.peak_bytes / 2**30 < 1.3 * 32.79


def test_making_a_large_model_and_its_reference_cost_minutes():
    h200 = load_config(ROOT / "config/h200.yaml")
    gpu = Target("cuda", "NVIDIA H200", (9, 0), 140 * 2**30)
    large, small = (plan_panel(h200, f"decoding/{name}", gpu) for name in ("opt_175b", "opt_13b"))
    assert large.rows - large.refused.total() == 2
    assert 100 < large.seconds < 300
    assert small.seconds < 200


@pytest.mark.parametrize("name", ["v100", "h200"])
def test_the_command_needs_no_torch_and_no_gpu(name):
    code = (
        "import sys; sys.argv[1:] = ['plan', 'config/%s.yaml']; from harness.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "loaded = [m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules]; assert not loaded, loaded"
    )
    command = [sys.executable, "-c", code % name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    config = load_config(ROOT / f"config/{name}.yaml")
    rows = sum(len(config.rows(panel)) for panel in config.panel_names())
    assert f"{rows} rows, at most " in ended.stdout
    assert "minutes" in ended.stdout
