"""What this machine has, and for each contender whether it can run here or how to get it."""

from __future__ import annotations

import importlib.metadata
import platform

from rich.console import Console
from rich.table import Table

from harness.contender import Target, discover
from harness.lazy import lazy_import
from harness.machine import Gpu, cpu_name, gpus

torch = lazy_import("torch")

LIBRARIES = (
    "torch",
    "triton",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-ml-py",
    "snakemake",
    "papermill",
    "xformers",
    "flash-attn",
    "fa3-fwd",
    "flash-attn-4",
    "cuda-bench",
)


def print_diagnosis() -> None:
    """Print machine, libraries, NVML abilities and contenders."""
    found = gpus()
    console = Console(highlight=False)
    console.print(_machine(found))
    console.print(_libraries())
    console.print(_contenders(found[0].target if found else Target("cpu", cpu_name())))


def _machine(found: list[Gpu]) -> Table:
    table = Table("what", "here", title="Machine")
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    table.add_row("cpu", cpu_name())
    if not found:
        table.add_row("gpu", "none visible: runs use the smoke config, on the CPU")
    for gpu in found:
        capability = ".".join(map(str, gpu.capability))
        table.add_row("gpu", f"{gpu.name}, compute capability {capability}, {gpu.memory_bytes / 2**30:.0f} GiB")
        table.add_row("driver", gpu.driver)
        for ability, answer in nvml_abilities(gpu.uuid).items():
            table.add_row(f"nvml {ability}", answer)
    return table


def nvml_abilities(uuid: str) -> dict[str, str]:
    """What NVML answers for this GPU: a reading, or the error's name."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    asks = {
        "energy counter": lambda: f"{pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000:.0f} J",
        "power": lambda: f"{pynvml.nvmlDeviceGetPowerUsage(handle) / 1000:.0f} W",
        "power cap": lambda: f"{pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000:.0f} W",
        "temperature": lambda: f"{pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)} C",
        "SM clock": lambda: f"{pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)} MHz",
        "throttle reasons": lambda: f"{pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle):#x}",
        "ECC": lambda: "on" if pynvml.nvmlDeviceGetEccMode(handle)[0] else "off",
        "MIG": lambda: "on" if pynvml.nvmlDeviceGetMigMode(handle)[0] else "off",
        "persistence": lambda: "on" if pynvml.nvmlDeviceGetPersistenceMode(handle) else "off",
        "processes": lambda: f"{len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))} on the GPU",
    }
    answers = {}
    for ability, ask in asks.items():
        try:
            answers[ability] = ask()
        except pynvml.NVMLError as error:
            answers[ability] = f"no: {error}"
    pynvml.nvmlShutdown()
    return answers


def _libraries() -> Table:
    table = Table("library", "version", title="Libraries")
    for name in LIBRARIES:
        try:
            table.add_row(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            table.add_row(name, "-")
    table.add_row("CUDA of torch", torch.version.cuda or "none: a CPU build")
    return table


def _contenders(target: Target) -> Table:
    table = Table("op", "contender", "role", "here", title=f"Contenders on {target.name}")
    for op, contenders in discover().items():
        for name, contender in contenders.items():
            table.add_row(op, name, contender.role, contender.unavailable(target) or "available")
    return table
