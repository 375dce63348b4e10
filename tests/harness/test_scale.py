"""Ten thousand records from JSON lines to figures, two at a time. On demand: `pytest -s -m slow`."""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from harness.config import Config, load_config
from harness.figures import FIGURES
from harness.ops import OPS
from harness.paths import ROOT
from harness.records import Record, Sample
from harness.store import Store, records_path
from harness.store import pack as packed
from tests.harness.figures.synthetic import many_records

COLUMNS = Record.model_fields.keys()
CORES = 2
WANTED_S = 60
ROUNDS, SAMPLES = 10, 22  # of one metric, and in a round: as many as the H200's run has


def config_of(records: list[Record], path: Path) -> Config:
    """A config whose rows are these records, written to `path`."""
    experiments, written = {}, {}
    for name, group in itertools.groupby(records, key=lambda record: record.experiment):
        of_experiment = list(group)
        op = of_experiment[0].op
        cases = {}
        for record in of_experiment:
            params = OPS[op].Params(**{field: getattr(record, field) for field in OPS[op].Params.model_fields})
            record.case_id = f"{op}.{params.slug()}"  # of the density that came out, not of the one asked for
            cases[record.case_id] = params.model_dump(exclude_defaults=True)
        shapes = written.setdefault(tuple(cases), list(cases.values()))  # an alias in YAML the next time, as people do
        experiments[name] = {
            "op": op,
            "question": "?",
            "baseline": of_experiment[0].baseline,
            "contenders": list(dict.fromkeys(r.contender for r in of_experiment)),
            "panels": [{"name": "main", "title": name, "shapes": shapes}],
        }
    path.write_text(yaml.safe_dump({"run": "many", "device": "cuda", "experiments": experiments}))
    return load_config(path)


def samples(record: Record) -> list[Sample]:
    card = {
        "sm_clock_mhz": 1500.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 50.0,
        "power_w": 600.0,
    }
    return [
        Sample(
            metric=metric,
            round=number,
            seconds=record.cold_median_s * (1 + index / 1000),
            throttle="none",
            accepted=True,
            **card,
        )
        for metric in ("cold", "hot")
        for number in range(ROUNDS)
        for index in range(SAMPLES)
    ]


def cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.slow
def test_ten_thousand_records_are_collected_and_drawn_within_a_minute(tmp_path):
    records = [record for record in many_records(12_000) if OPS[record.op].Params.model_fields.keys() <= COLUMNS][
        :10_000
    ]
    assert len(records) == 10_000
    path = tmp_path / "many.yaml"
    config = config_of(records, path)
    for panel, group in itertools.groupby(records, key=lambda record: f"{record.experiment}/{record.panel}"):
        with Store(tmp_path / records_path(config, panel)) as store:
            for record in group:
                store.append(record, packed(samples(record)) if record.cold_median_s else [])

    def voltabench(*arguments: str) -> float:
        began = time.perf_counter()
        environment = {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-m", "harness", *arguments], cwd=tmp_path, env=environment, check=True)
        return time.perf_counter() - began

    began, cpu_began = time.perf_counter(), cpu_s()
    spent = {"collect": voltabench("collect", str(path))}
    with ThreadPoolExecutor(CORES) as pool:
        spent |= zip(FIGURES, pool.map(lambda name: voltabench("figure", str(path), name), FIGURES), strict=True)
    whole, cpu = time.perf_counter() - began, cpu_s() - cpu_began
    table = pq.read_metadata(tmp_path / "results/many/samples.parquet")
    print(f"\n{len(records)} records, {table.num_rows} samples: {whole:.1f} s, {cpu:.1f} s of CPU time, of which")
    for name, seconds in spent.items():
        print(f"  {name}: {seconds:.1f} s")
    assert pq.read_metadata(tmp_path / "results/many/records.parquet").num_rows == len(records)
    assert whole < WANTED_S
