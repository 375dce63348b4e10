"""The throughput model of our kernels as a table, results/<run>/model.csv: what is expected, never what was measured.

impl/cuda/model is the model, docs/model.md says what it takes in and leaves out. Where a run has records of a modelled
kernel on a modelled GPU, their mean stands beside the estimate, and the difference is the model's error there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from harness.config import load_config
from harness.statistics import geometric_mean
from impl.cuda.build import BuildError
from impl.cuda.model.estimate import Estimate, estimate, launch_tflops
from impl.cuda.model.gpu import H200, V100, Gpu
from impl.cuda.model.modelled import Modelled, all_modelled, count_traffic

RESOURCES = ("issue", "registers", "tensor", "fma", "alu", "transcendental", "shared", "L2")
ESTIMATED = {field.name for field in dataclasses.fields(Estimate)} - {"demand"}
SWEEP = (1024, 4096, 16384)  # lengths of the launches that are modelled, 16,384 tokens of 2048 hidden units each


def _column(description: str) -> Any:
    return Field(None, description=description)


class ModelRow(BaseModel):
    """One kernel on one GPU."""

    model_config = ConfigDict(extra="forbid")

    gpu: str = Field(description="the GPU that is modelled")
    kernel: str = Field(description="name of the kernel, as in resources.csv")
    op: str = Field(description="attention | spmm")
    direction: str | None = Field(None, description="forward, backward, or null where it has no meaning")
    head_dim: int | None = Field(None, description="head dimension")
    source_arch: str = Field(description="architecture the kernel source was written for")
    built_arch: str = Field(description="architecture it was compiled for")
    hash: str | None = Field(None, description="names the machine code that was read")
    clock_mhz: float = Field(description="SM clock that is assumed, MHz")
    instructions: int | None = Field(None, description="machine instructions of a warp in one pass of the main loop")
    blocks_per_sm: int | None = Field(None, description="blocks that share an SM")
    warps_per_scheduler: float | None = Field(None, description="warps that share one of an SM's four schedulers")
    clocks_issue: float | None = _column("clocks of a scheduler that a pass asks for, one for each instruction")
    clocks_registers: float | None = _column("the same of the register file's read ports")
    clocks_tensor: float | None = _column("the same of the Tensor Core")
    clocks_fma: float | None = _column("the same of the multiply-add pipe")
    clocks_alu: float | None = _column("the same of the integer pipe")
    clocks_transcendental: float | None = _column("the same of the unit for exponentials and conversions")
    clocks_shared: float | None = _column("the same of the SM's shared memory, for a pass on each scheduler")
    clocks_l2: float | None = _column("the same of the SM's way to L2")
    bound_by: str | None = Field(None, description="the resource of which a pass asks for most clocks")
    clocks: float | None = _column("modelled clocks of a scheduler for a warp's pass, the SM's warps sharing it")
    ends_clocks: float | None = _column("modelled clocks of an SM for the beginning and the end of a block")
    binding: str | None = Field(
        None, description="that resource, where it is in use for 85 % of these clocks or more; else latency"
    )
    waits: str | None = Field(None, description="what warps wait for most: stall, a busy pipe, a pipe's result, ...")
    bound_tflops: float | None = _column("modelled TFLOP/s if the most used resource were always in use")
    model_tflops: float | None = _column("modelled TFLOP/s, of Tensor-Core work; not a measurement")
    launch_tflops: str | None = _column(
        f"modelled TFLOP/s of whole launches by seqlen, as JSON: {SWEEP}, 16,384 tokens, 2048 hidden units"
    )
    measured_tflops: float | None = _column(
        "geometric mean of this run's records of the kernel: no mask; SpMM at 60 % zeros"
    )
    measured_cases: int | None = Field(None, description="records in that mean")
    error: float | None = _column(
        "geometric mean of modelled / measured, less 1: of an attention's launches, at each record's clock; SpMM's loop"
    )
    errors: str | None = _column("the same by seqlen, as JSON")
    reason: str | None = Field(None, description="why there is no estimate")


def write_model(config_path: str | Path) -> None:
    """Write results/<run>/model.csv and print it: of a run without a GPU, the kernels written for what it compiles."""
    config = load_config(config_path)
    records = config.results / "records.parquet"
    kernels = [m for m in all_modelled() if config.device == "cuda" or m.kernel.arch in config.architectures]
    rows = model_rows(pd.read_parquet(records) if records.exists() else None, kernels)
    config.results.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([row.model_dump() for row in rows], columns=list(ModelRow.model_fields))
    table.to_csv(config.results / "model.csv", index=False, float_format="%.6g", lineterminator="\n")
    print_rows(rows)


def model_rows(records: pd.DataFrame | None, kernels: Iterable[Modelled]) -> list[ModelRow]:
    """A row for each of `kernels`: those written for sm_70 on a V100, the others on an H200.

    records: of the run, to compare with.
    """
    return [_row(modelled, records) for modelled in kernels]


def _row(modelled: Modelled, records: pd.DataFrame | None) -> ModelRow:
    kernel = modelled.kernel
    gpu = V100 if kernel.arch == V100.arch else H200
    measured = pd.DataFrame() if records is None else compared(records, modelled, gpu)
    row = ModelRow(
        gpu=gpu.name,
        kernel=kernel.name,
        op=modelled.case["op"],
        direction=modelled.case.get("direction"),
        head_dim=modelled.case.get("head_dim"),
        source_arch=kernel.arch,
        built_arch=gpu.arch,
        clock_mhz=gpu.clock_mhz,
        measured_tflops=None if measured.empty else geometric_mean(measured["tflops"]),
        measured_cases=len(measured) or None,
    )
    try:
        found = estimate(modelled, gpu, count_traffic().get(kernel.name, {}))
    except BuildError as error:
        return row.model_copy(update={"reason": str(error).splitlines()[0]})
    values = {name: getattr(found, name) for name in ESTIMATED}
    values |= {f"clocks_{name.lower()}": found.demand.get(name, 0.0) for name in RESOURCES}
    if modelled.grid:
        launches = {s: launch_tflops(found, modelled, gpu, sweep_case(modelled, s)) for s in SWEEP}
        values["launch_tflops"] = json.dumps({s: round(tflops, 1) for s, tflops in launches.items()})
    if not measured.empty:
        ratios = measured.apply(lambda record: _modelled_at(found, modelled, gpu, record) / record["tflops"], axis=1)
        values["error"] = geometric_mean(ratios) - 1
        by_seqlen = ratios.groupby(measured["seqlen_q"]).agg(geometric_mean) - 1
        values["errors"] = json.dumps({int(s): round(e, 3) for s, e in by_seqlen.items()}) if modelled.grid else None
    return row.model_copy(update=values)


def sweep_case(modelled: Modelled, seqlen: int) -> dict[str, int]:
    """The shape of an attention of the sweep, by column of the records."""
    heads = 2048 // modelled.case["head_dim"]
    sizes = {"batch": 16384 // seqlen, "num_heads": heads, "num_heads_kv": heads}
    return {**sizes, "seqlen_q": seqlen, "seqlen_k": seqlen}


def compared(records: pd.DataFrame, modelled: Modelled, gpu: Gpu) -> pd.DataFrame:
    """The records of this kernel on this GPU that the model can be held against."""
    wanted = {
        "status": "ok",
        "backend": "kernel",
        "kernel_arch": modelled.kernel.arch,
        "built_arch": gpu.arch,
        **modelled.case,
    }
    rows = records[records["device_name"].str.contains(gpu.name, na=False) & records["tflops"].notna()]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return rows


def _modelled_at(found: Estimate, modelled: Modelled, gpu: Gpu, record: Mapping[str, Any]) -> float:
    """TFLOP/s of a record's launch at the clock that it ran at; where only the loop is modelled, of that."""
    if modelled.grid is None:
        return found.model_tflops
    clock = record["sm_clock_mhz"]
    return launch_tflops(found, modelled, gpu, record) * (1.0 if pd.isna(clock) else clock / gpu.clock_mhz)


def print_rows(rows: list[ModelRow]) -> None:
    """Print the estimates by GPU, each with what was measured where the run has it."""
    width = max(len(row.kernel) for row in rows) + 2
    for gpu, clock in dict.fromkeys((row.gpu, row.clock_mhz) for row in rows):
        print(f"{gpu} at {clock:.0f} MHz: a model, not a measurement; Tensor-Core TFLOP/s of the main loop")
        print(f"  {'kernel':{width}}bound  model  measured  error  binds      launches by length; error")
        for row in rows:
            if row.gpu == gpu:
                print(f"  {row.kernel:{width}}{row.reason or _numbers(row)}")


def _numbers(row: ModelRow) -> str:
    measured = f"{row.measured_tflops:.0f}" if row.measured_tflops else ""
    error = f"{row.error:+.0%}" if row.error is not None else ""
    launches = ", ".join(f"{s}: {tflops:.0f}" for s, tflops in json.loads(row.launch_tflops or "{}").items())
    errors = ", ".join(f"{value:+.0%}" for value in json.loads(row.errors or "{}").values())
    ends = f"  {launches}{errors and '; '}{errors}" if launches else ""
    return f"{row.bound_tflops:5.0f}{row.model_tflops:7.0f}{measured:>10}{error:>7}  {row.binding:9}{ends}".rstrip()
