"""The throughput model of our kernels as a table, results/<run>/model.csv: what is expected, never what was measured.

impl/cuda/model is the model, docs/model.md says what it takes in and leaves out. Where a run has records of a modelled
kernel on a modelled GPU, their mean stands beside the estimate, and the difference is the model's error there.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from harness.config import load_config
from harness.statistics import geometric_mean
from impl.cuda.build import BuildError
from impl.cuda.model.estimate import Estimate, estimate
from impl.cuda.model.gpu import H200, V100, Gpu
from impl.cuda.model.modelled import Modelled, all_modelled, count_traffic

RESOURCES = ("issue", "registers", "tensor", "fma", "alu", "transcendental", "shared", "L2")
ESTIMATED = {field.name for field in dataclasses.fields(Estimate)} - {"demand"}
SHORTEST = 4096  # seqlen of records that are compared: the model has no beginning and no end of a block


def _column(description: str) -> float | None:
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
    binding: str | None = Field(
        None, description="that resource, where it is in use for 85 % of these clocks or more; else latency"
    )
    waits: str | None = Field(None, description="what warps wait for most: stall, a busy pipe, a pipe's result, ...")
    bound_tflops: float | None = _column("modelled TFLOP/s if the most used resource were always in use")
    model_tflops: float | None = _column("modelled TFLOP/s, of Tensor-Core work; not a measurement")
    measured_tflops: float | None = _column(
        f"geometric mean of this run's records of the kernel: no mask, seqlen >= {SHORTEST}; SpMM at 60 % zeros"
    )
    measured_cases: int | None = Field(None, description="records in that mean")
    error: float | None = _column("model_tflops / measured_tflops - 1")
    reason: str | None = Field(None, description="why there is no estimate")


def write_model(config_path: str | Path) -> None:
    """Write results/<run>/model.csv and print it."""
    config = load_config(config_path)
    records = config.results / "records.parquet"
    rows = model_rows(pd.read_parquet(records) if records.exists() else None)
    config.results.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([row.model_dump() for row in rows], columns=list(ModelRow.model_fields))
    table.to_csv(config.results / "model.csv", index=False, float_format="%.6g", lineterminator="\n")
    print_rows(rows)


def model_rows(records: pd.DataFrame | None) -> list[ModelRow]:
    """A row for each kernel that can be modelled: those written for sm_70 on a V100, the others on an H200.

    records: of the run, to compare with.
    """
    return [_row(modelled, records) for modelled in all_modelled()]


def _row(modelled: Modelled, records: pd.DataFrame | None) -> ModelRow:
    kernel = modelled.kernel
    gpu = V100 if kernel.arch == V100.arch else H200
    measured = [] if records is None else measured_tflops(records, modelled, gpu)
    row = ModelRow(
        gpu=gpu.name,
        kernel=kernel.name,
        op=modelled.case["op"],
        direction=modelled.case.get("direction"),
        head_dim=modelled.case.get("head_dim"),
        source_arch=kernel.arch,
        built_arch=gpu.arch,
        clock_mhz=gpu.clock_mhz,
        measured_tflops=geometric_mean(measured) if measured else None,
        measured_cases=len(measured) or None,
    )
    try:
        found = estimate(modelled, gpu, count_traffic().get(kernel.name, {}))
    except BuildError as error:
        return row.model_copy(update={"reason": str(error).splitlines()[0]})
    values = {name: getattr(found, name) for name in ESTIMATED}
    values |= {f"clocks_{name.lower()}": found.demand.get(name, 0.0) for name in RESOURCES}
    if measured:
        values["error"] = found.model_tflops / row.measured_tflops - 1
    return row.model_copy(update=values)


def measured_tflops(records: pd.DataFrame, modelled: Modelled, gpu: Gpu) -> list[float]:
    """TFLOP/s of the records that a steady main loop of this kernel can be compared with."""
    wanted = {
        "status": "ok",
        "backend": "kernel",
        "kernel_arch": modelled.kernel.arch,
        "built_arch": gpu.arch,
        **modelled.case,
    }
    long = records["seqlen_k"].isna() | (records["seqlen_k"] >= SHORTEST)
    rows = records[records["device_name"].str.contains(gpu.name, na=False) & long]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return rows["tflops"].dropna().tolist()


def print_rows(rows: list[ModelRow]) -> None:
    """Print the estimates by GPU, each with what was measured where the run has it."""
    width = max(len(row.kernel) for row in rows) + 2
    for gpu, clock in dict.fromkeys((row.gpu, row.clock_mhz) for row in rows):
        print(f"{gpu} at {clock:.0f} MHz: a model, not a measurement; Tensor-Core TFLOP/s of the main loop")
        print(f"  {'kernel':{width}}bound  model  measured  error  binds")
        for row in rows:
            if row.gpu == gpu:
                print(f"  {row.kernel:{width}}{row.reason or _numbers(row)}")


def _numbers(row: ModelRow) -> str:
    measured = f"{row.measured_tflops:.0f}" if row.measured_tflops else ""
    error = f"{row.error:+.0%}" if row.error is not None else ""
    return f"{row.bound_tflops:5.0f}{row.model_tflops:7.0f}{measured:>10}{error:>7}  {row.binding}"
