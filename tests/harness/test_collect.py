from __future__ import annotations

import random
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from harness.collect import KEY_COLUMNS, collect_run, record_table, sample_table, schema, write_atomically
from harness.errors import NoRecords
from harness.records import Record, Sample
from harness.store import Store, pack, records_path


def record(contender: str, gbps: float | None = None, **fields: object) -> Record:
    return Record(experiment="e", panel="p", case_id="c", contender=contender, gbps=gbps, **fields)


def test_columns_and_types_do_not_depend_on_the_rows() -> None:
    empty, full = record_table([]), record_table([record("a", causal=True, m=3, speedup=1.5)])
    assert empty.schema == full.schema == schema(Record)
    assert full.column_names == list(Record.model_fields)
    assert sample_table([], []).column_names == [*KEY_COLUMNS, *Sample.model_fields]


def test_bandwidth_is_a_fraction_of_the_fastest_copy() -> None:
    rows = record_table([record("copy", 4000.0), record("copy", 3500.0), record("a", 2000.0), record("b")]).to_pylist()
    assert [row["bandwidth_fraction"] for row in rows] == [1.0, 0.875, 0.5, None]
    assert record_table([record("a", 2000.0)]).to_pylist()[0]["bandwidth_fraction"] is None


def test_a_copy_has_no_flops_per_second() -> None:
    rows = record_table([record("copy", tflops=5.0), record("a", tflops=5.0)]).to_pylist()
    assert [row["tflops"] for row in rows] == [None, 5.0]


def test_samples_come_out_as_they_went_in() -> None:
    given = [
        Sample(
            metric=random.choice(["cold", "hot"]),
            round=i // 3,
            seconds=random.uniform(1e-6, 1),
            accepted=random.random() < 0.5,
            power_w=random.choice([None, 300.5]),
            throttle=random.choice([None, "none", "power_cap"]),
        )
        for i in range(200)
    ]
    table = sample_table([record("none"), record("a")], [[], pack(given)]).to_pylist()
    assert [row["contender"] for row in table] == ["a"] * 200
    for row, sample in zip(table, given, strict=True):
        expected = sample.model_dump()
        assert row["seconds"] == pytest.approx(expected.pop("seconds"), rel=1e-6)
        assert {name: row[name] for name in expected} == expected


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_and_fail(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, write_and_fail)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 2 panels, planned in another order than it was measured."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(
        """
run: t
device: cpu
experiments:
  e:
    op: spmm
    question: q
    baseline: cublas
    contenders: [cublas, copy]
    panels:
      - {name: a, title: a, shapes: [{m: 8, k: 8, sparsity: 0.5}], each: {n: [1, 2]}}
      - {name: b, title: b, headline: true, shapes: [{m: 8, k: 8, sparsity: 0.5}], each: {n: [1]}}
"""
    )
    return path


def test_a_run_that_measured_nothing_is_said(config: Path) -> None:
    with pytest.raises(NoRecords, match="results/t/records: no records yet"):
        collect_run(config)
    assert not Path("results/t").exists()


def test_a_run_is_its_planned_cells_in_the_order_of_the_config(config: Path) -> None:
    from harness.config import load_config

    loaded = load_config(config)
    case = "spmm.m8.k8.n{}.s0.5.random.float16.seed0"
    for panel, rows in {
        "a": [
            (case.format(2), "copy"),
            (case.format(9), "cublas"),
            (case.format(1), "cublas"),
            (case.format(1), "gone"),
        ],
        "b": [(case.format(1), "cublas")],
    }.items():
        with Store(records_path(loaded, f"e/{panel}")) as store:
            for case_id, contender in rows:
                key = {"experiment": "e", "panel": panel, "case_id": case_id, "contender": contender}
                store.append(Record(**key, note="first"), [])
                store.append(Record(**key, note="last"), pack([Sample(metric="cold", seconds=0.5)]))
    collect_run(config)
    records = pd.read_parquet("results/t/records.parquet")
    assert records[["panel", "case_id", "contender"]].values.tolist() == [
        ["b", case.format(1), "cublas"],
        ["a", case.format(1), "cublas"],
        ["a", case.format(2), "copy"],
    ]
    assert set(records.note) == {"last"}
    assert len(pd.read_parquet("results/t/samples.parquet")) == 3
    before = Path("results/t/records.parquet").read_bytes()
    collect_run(config)
    assert Path("results/t/records.parquet").read_bytes() == before


def test_a_thousand_records_are_quick_to_read(tmp_path: Path) -> None:
    """10,000 records must be collected and drawn within a minute."""
    batches = pack([Sample(metric="cold", round=i // 50, seconds=random.random()) for i in range(600)])
    with_samples = [(record(f"c{i}"), batches) for i in range(1000)]
    began = time.process_time()
    table = sample_table(*map(list, zip(*with_samples, strict=True)))
    pq.write_table(table, tmp_path / "s.parquet")
    assert table.num_rows == 600_000
    assert time.process_time() - began < 3
