"""The model's table: what stands in it, what it is compared with, and that nothing takes it for a measurement."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest
from typer.testing import CliRunner

from harness import throughput
from harness.cli import app
from harness.figures import caption
from harness.figures.model_bound import TITLE
from harness.paths import ROOT
from harness.records import Record
from harness.throughput import ModelRow, model_rows, print_rows, write_model
from impl.cuda.build import BuildError
from impl.cuda.model.estimate import Estimate
from impl.cuda.model.modelled import all_modelled

ESTIMATE = Estimate(
    hash="abc",
    instructions=100,
    blocks_per_sm=2,
    warps_per_scheduler=2.0,
    demand={"issue": 100, "tensor": 200, "L2": 50},
    bound_by="tensor",
    clocks=400.0,
    binding="latency",
    waits="stall",
    ends_clocks=800.0,
    bound_tflops=120.0,
    model_tflops=60.0,
)


@pytest.fixture
def modelled(monkeypatch):
    """The model without its work: every kernel gets ESTIMATE."""
    monkeypatch.setattr(throughput, "count_traffic", dict)
    monkeypatch.setattr(throughput, "estimate", lambda *_: ESTIMATE)


def record(tflops, seqlen=4096, **changes):
    case = {"op": "attention", "direction": "forward", "dtype": "float16", "head_dim": 64, "causal": False}
    case |= {"seqlen_q": seqlen, "seqlen_k": seqlen, "batch": 16384 // seqlen, "num_heads": 32, "num_heads_kv": 32}
    case |= {"n": None, "sparsity": None, "sm_clock_mhz": None}
    ran = {"contender": "spark_attention", "status": "ok", "backend": "kernel", "kernel_arch": "sm_80"}
    return {**case, **ran, "built_arch": "sm_90a", "device_name": "NVIDIA H200", "tflops": tflops, **changes}


def row_of(records, name="spark_attention_forward_sm80_d64_fp16"):
    return next(row for row in model_rows(pd.DataFrame(records), all_modelled()) if row.kernel == name)


def test_a_row_for_each_kernel(modelled):
    rows = model_rows(None, all_modelled())
    assert [row.kernel for row in rows] == [m.kernel.name for m in all_modelled()]
    for row in rows:
        assert (row.gpu, row.built_arch) == (("V100", "sm_70") if row.source_arch == "sm_70" else ("H200", "sm_90a"))
        assert (row.clocks_tensor, row.clocks_l2, row.clocks_alu) == (200, 50, 0)
        assert (row.model_tflops, row.measured_tflops, row.error, row.reason) == (60, None, None, None)
        assert (row.launch_tflops is None) == (row.op == "spmm")


def test_the_error_of_a_loop_is_against_the_mean_of_the_records(modelled):
    spmm = {"op": "spmm", "contender": "flash_llm_tiled_csl", "n": 16, "sparsity": 0.6}
    row = row_of([record(40.0, **spmm), record(90.0, **spmm)], "flash_llm_tiled_csl_n16")
    assert (row.measured_tflops, row.measured_cases) == (pytest.approx(60), 2)
    assert row.error == pytest.approx(0)
    assert row.errors is None


def test_the_error_of_launches_is_by_length_and_at_the_clock_of_each_record(modelled):
    launches = {int(s): tflops for s, tflops in json.loads(row_of([record(1.0)]).launch_tflops).items()}
    assert launches[1024] < launches[4096] < launches[16384]
    slower = {"sm_clock_mhz": 960.0}  # half of what is assumed
    row = row_of([record(launches[1024], 1024), record(launches[4096] / 4, 4096, **slower)])
    assert json.loads(row.errors) == {"1024": pytest.approx(0, abs=2e-3), "4096": pytest.approx(1, abs=2e-3)}
    assert row.error == pytest.approx(2**0.5 - 1, abs=2e-3)


@pytest.mark.parametrize(
    "other",
    [
        {"causal": True},
        {"dtype": "bfloat16"},
        {"kernel_arch": "sm_90a"},
        {"built_arch": "sm_80"},
        {"device_name": "NVIDIA A100"},
        {"backend": "library"},
        {"status": "unstable"},
        {"direction": "backward"},
        {"head_dim": 128},
        {"op": "block_sparse_attention"},
        {"tflops": None},
    ],
)
def test_records_of_something_else_are_not_compared(modelled, other):
    assert row_of([record(50.0) | other]).measured_tflops is None
    assert row_of([record(50.0) | other, record(60.0)]).measured_tflops == pytest.approx(60)


def test_spmm_is_compared_at_its_width_and_sparsity(modelled):
    spmm = {"op": "spmm", "contender": "flash_llm_tiled_csl", "n": 16, "sparsity": 0.6}
    others = [{"n": 8}, {"sparsity": 0.8}, {"contender": "flash_llm_bitmap"}]
    row = row_of([record(50.0, **spmm), *(record(10.0, **spmm | other) for other in others)], "flash_llm_tiled_csl_n16")
    assert (row.measured_tflops, row.measured_cases) == (pytest.approx(50), 1)


def test_a_kernel_that_cannot_be_modelled_says_why(monkeypatch, capsys):
    def refuse():
        raise BuildError("the emulator needs g++\nmore of the log")

    monkeypatch.setattr(throughput, "count_traffic", refuse)
    rows = model_rows(pd.DataFrame([record(50.0)]), all_modelled())
    assert {row.reason for row in rows} == {"the emulator needs g++"}
    assert all(row.model_tflops is None for row in rows)
    print_rows(rows)
    assert "the emulator needs g++" in capsys.readouterr().out


def test_the_command_writes_the_table(modelled, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["model", str(ROOT / "config" / "smoke.yaml")])
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("a model, not a measurement") == 1
    table = pd.read_csv(tmp_path / "results" / "smoke" / "model.csv")
    assert list(table) == list(ModelRow.model_fields)
    assert set(table["kernel"]) == {m.kernel.name for m in all_modelled() if m.kernel.arch == "sm_70"}
    first = (tmp_path / "results/smoke/model.csv").read_bytes()
    write_model(ROOT / "config" / "smoke.yaml")
    assert (tmp_path / "results/smoke/model.csv").read_bytes() == first


def test_no_record_can_hold_an_estimate():
    """Estimates have columns of their own, in a table of their own."""
    estimated = {name for name in ModelRow.model_fields if name.startswith(("model_", "bound", "clocks"))}
    assert len(estimated) > 10
    assert not estimated & set(Record.model_fields)
    assert "model" not in str(Record.model_fields["backend"].annotation)


def test_the_model_is_called_one_wherever_it_is_shown():
    assert "a model, not a measurement" in caption("model_bound")
    assert TITLE.startswith("Model, not a measurement")
    table_caption = (ROOT / "workflows" / "report" / "model.rst").read_text()
    assert "a model, not a measurement" in " ".join(table_caption.split())
    for name, field in ModelRow.model_fields.items():
        if name.endswith("tflops"):
            assert "modelled" in field.description or name == "measured_tflops"


def test_published_records_of_the_h200_bear_the_model_out():
    """Attention by less than 25 %, at every length; SpMM, of which only the loop is modelled, as docs/model.md says."""
    path = ROOT / "results" / "h200" / "model.csv"
    rows = pd.read_csv(path).dropna(subset="measured_tflops")
    records = pd.read_parquet(path.with_name("records.parquet"))
    modelled = records["contender"].isin(["spark_attention_sm80", "flash_llm_tiled_csl"])
    modelled &= records["op"] != "decode_step"  # more than a product
    measured = set(records[modelled & (records["status"] == "ok")]["op"])
    measured_lengths = (records[modelled & (records["status"] == "ok")]["op"] == "attention").sum()
    assert measured == set(rows["op"]) == {"attention", "spmm"}
    assert (rows[rows["op"] == "attention"]["error"].abs() < 0.25).all()
    by_length = [error for errors in rows["errors"].dropna() for error in json.loads(errors).values()]
    assert len(by_length) == measured_lengths
    assert max(map(abs, by_length)) < 0.25
    stated = re.search(r"Tiled-CSL, N=8 / 16 / 32, .*\| (.*) \|\n", (ROOT / "docs" / "model.md").read_text())[1]
    assert stated == " / ".join(f"{error:+.0%}".replace("%", " %") for error in rows[rows["op"] == "spmm"]["error"])
