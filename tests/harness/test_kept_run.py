"""results/h200, the run that is kept in git: its tables are of its records, its resource report of the kernels."""

from __future__ import annotations

import csv

import pyarrow.parquet as pq
import pytest

from harness.claims import claims_table
from harness.collect import KEY_COLUMNS, read_panels
from harness.config import load_config
from harness.figures.run import Run
from harness.paths import ROOT
from impl.cuda.report import all_kernels, target_architectures


@pytest.fixture
def config(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_config("config/h200.yaml")


def test_the_table_has_the_last_record_of_each_cell(config):
    records, _ = read_panels(config, config.panel_names())
    columns = [*KEY_COLUMNS, "started_at"]
    kept = pq.read_table(config.results / "records.parquet", columns=columns).to_pylist()
    said = "voltabench collect config/h200.yaml; then its figures and claims"
    assert kept == [record.model_dump(include=set(columns)) for record in records], said


def test_the_verdicts_are_of_its_records(config):
    table = claims_table(Run.open("config/h200.yaml")).to_csv(index=False, lineterminator="\n")
    assert (config.results / "claims.csv").read_text() == table, "voltabench claims config/h200.yaml"


def test_the_resource_report_has_every_kernel_and_no_spill(config):
    kernels = all_kernels()
    built = {(kernel.name, arch) for kernel in kernels for arch in target_architectures(kernel, config.architectures)}
    with (config.results / "resources.csv").open() as file:
        rows = list(csv.DictReader(file))
    said = "voltabench build config/h200.yaml --output results/h200/resources.csv"
    assert {(row["kernel"], row["built_arch"]) for row in rows} == built, said
    spilled = [row["kernel"] for row in rows if row["source_arch"] == row["built_arch"] and int(row["spill_bytes"])]
    assert spilled == []
