"""What this machine has, and for each contender whether it can run here or how to get it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from harness.contender import Contender, Target, discover
from harness.lazy import lazy_import
from harness.machine import Gpu, cpu_name, gpus
from harness.nvml import Card
from harness.provenance import library_versions
from impl.cuda import emulator

torch = lazy_import("torch")

PACKAGES = (  # what the harness, the kernels' compiler and optional contenders are made of
    "cuda-bench",
    "cuda-bindings",
    "cuda-core",
    "fa3-fwd",
    "flash-attn",
    "flash-attn-4",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-ml-py",
    "papermill",
    "snakemake",
    "triton",
    "xformers",
)


def print_diagnosis() -> None:
    """Print machine, libraries, NVML abilities and contenders."""
    found = gpus()
    console = Console(highlight=False)
    console.print(_machine(found))
    console.print(_libraries())
    target = found[0].target if found else Target("cpu", cpu_name())
    for op, contenders in discover().items():
        console.print(_contenders(op, contenders, target))


def _machine(found: list[Gpu]) -> Table:
    table = _table("Machine", "what", last="here")
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    table.add_row("cpu", cpu_name())
    if not found:
        table.add_row("gpu", "none visible: runs use the smoke config, on the CPU")
        table.add_row("our kernels", emulator.available() or "emulated on the CPU")
    for gpu in found:
        capability = ".".join(map(str, gpu.capability))
        table.add_row("gpu", f"{gpu.name}, compute capability {capability}, {gpu.memory_bytes / 2**30:.0f} GiB")
        table.add_row("driver", gpu.driver)
        for ability, answer in nvml_abilities(Card(gpu.uuid)).items():
            table.add_row(f"nvml {ability}", answer)
    return table


def nvml_abilities(card: Card) -> dict[str, str]:
    """What NVML answers for this card: a reading, or why there is none."""
    readings = {"energy counter, J": card.energy_j(), **asdict(card.state()), **card.settings()}
    answers = {name: "no answer" if reading is None else str(reading) for name, reading in readings.items()}
    return {**answers, **{f"cannot {function}": reason for function, reason in card.reasons.items()}}


def _libraries() -> Table:
    table = _table("Libraries", "library", last="version")
    table.add_row("CUDA of torch", torch.version.cuda or "none: a CPU build")
    loaded = library_versions()
    for name in sorted({*loaded, *PACKAGES}):
        table.add_row(name, f"{loaded[name]} (loaded)" if name in loaded else _installed(name))
    return table


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _contenders(op: str, contenders: Mapping[str, Contender], target: Target) -> Table:
    table = _table(f"{op} on {target.name}", "contender", "role", last="here")
    for name, contender in contenders.items():
        table.add_row(name, contender.role, contender.unavailable(target) or "available")
    return table


def _table(title: str, *names: str, last: str) -> Table:
    """Of columns whose words stay in one piece, and a last one that takes what width is left."""
    table = Table(title=title)
    for name in names:
        table.add_column(name, no_wrap=True)
    table.add_column(last, overflow="fold")
    return table
