"""Records and samples as tables: one Parquet file each, of a panel or of the whole run.

Columns and their types are those of `records.Record` and `records.Sample`, in that order, whatever the rows hold;
rows are the planned cells in the order of the config.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from harness import provenance
from harness.config import Config, load_config
from harness.errors import NoRecords
from harness.records import Record, Sample
from harness.store import Key, read_lines, records_path

KEY_COLUMNS = ("experiment", "panel", "case_id", "contender")
COPY = "copy"  # the control whose bandwidth others are measured by
_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

Batches = list[dict[str, Any]]


def schema(model: type[BaseModel]) -> pa.Schema:
    """Arrow schema of a model whose fields are plain values, optional ones and string literals."""
    return pa.schema([(name, _TYPES[_plain_type(field.annotation)]) for name, field in model.model_fields.items()])


def _plain_type(annotation: Any) -> type:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    return str if typing.get_origin(annotation) is typing.Literal else annotation


def sample_schema() -> pa.Schema:
    """The key of the record, then the sample."""
    return pa.schema([*((name, pa.string()) for name in KEY_COLUMNS), *schema(Sample)])


def planned(config: Config, panel: str) -> list[Key]:
    return [(case.experiment, case.panel, case.id, contender) for case, contender in config.rows(panel)]


def read_panels(config: Config, panels: Iterable[str]) -> tuple[list[Record], list[Batches]]:
    """The last record of each planned cell that has one, with its samples."""
    records, samples = [], []
    for panel in panels:
        last = {record.key(): (record, batches) for record, batches in read_lines(records_path(config, panel))}
        for key in planned(config, panel):
            if key in last:
                records.append(last[key][0])
                samples.append(last[key][1])
    return records, samples


def record_table(records: list[Record]) -> pa.Table:
    """One row per record, bandwidth_fraction filled in against the fastest copy among them; a copy computes nothing."""
    fastest = max((r.gbps for r in records if r.contender == COPY and r.gbps), default=None)
    rows = [r.model_dump() for r in records]
    for row in rows:
        if fastest and row["gbps"]:
            row["bandwidth_fraction"] = row["gbps"] / fastest
        if row["contender"] == COPY:
            row["tflops"] = None
    return pa.Table.from_pylist(rows, schema=schema(Record))


def sample_table(records: list[Record], samples: list[Batches]) -> pa.Table:
    """One row per sample, built by column: a run has millions."""
    batches = [(record.key(), batch) for record, of_record in zip(records, samples, strict=True) for batch in of_record]
    counts = pa.array([len(batch["seconds"]) for _, batch in batches], pa.int64())
    index = pa.array(i for i, count in enumerate(counts.to_pylist()) for _ in range(count))
    index = index.cast(pa.int64())
    columns = []
    for field in sample_schema():
        if field.name == "seconds":
            columns.append(pa.array([s for _, batch in batches for s in batch["seconds"]], field.type))
            continue
        if field.name in KEY_COLUMNS:
            values = [key[KEY_COLUMNS.index(field.name)] for key, _ in batches]
        else:
            values = [batch[field.name] for _, batch in batches]
        columns.append(pa.array(values, field.type).take(index))
    return pa.Table.from_arrays(columns, schema=sample_schema())


def write_atomically(path: Path, write: Any) -> None:
    """`write(temporary path)`, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_panel(config: Config, panel: str) -> Path:
    """Write results/<run>/panels/<experiment>/<panel>.parquet: the panel's records."""
    path = config.results / "panels" / f"{panel}.parquet"
    table = record_table(read_panels(config, [panel])[0])
    write_atomically(path, lambda temporary: _write_table(table, temporary))
    return path


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", compression_level=15)  # runs are kept in git


def machine_path(config: Config, panel: str) -> Path:
    """Where the machine that measured `panel` last is described."""
    return records_path(config, panel).with_suffix(".machine.json")


def collect_run(config_path: str | Path) -> None:
    """Write records.parquet, samples.parquet and run.json of the config's run.

    Raises ConfigError for a bad config, MachineError for a file of records that something else has written to, and
    NoRecords where nothing has been measured.
    """
    config = load_config(config_path)
    panels = config.panel_names()
    records, samples = read_panels(config, panels)
    if not records:
        raise NoRecords(config.results / "records", config_path)
    tables = {"records": record_table(records), "samples": sample_table(records, samples)}
    for name, table in tables.items():
        write_atomically(config.results / f"{name}.parquet", lambda path, table=table: _write_table(table, path))
    machines = {p: json.loads(machine_path(config, p).read_text()) for p in panels if machine_path(config, p).exists()}
    cells = sum(len(planned(config, panel)) for panel in panels)
    run = {
        "run": config.run,
        "config_hash": provenance.config_hash(config),
        "planned": cells,
        "recorded": len(records),
        "samples": tables["samples"].num_rows,
        "machines": machines,
    }
    write_atomically(config.results / "run.json", lambda path: path.write_text(json.dumps(run, indent=2) + "\n"))
