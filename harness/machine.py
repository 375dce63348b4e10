"""What this machine is, asked of NVML so that no command has to import torch to find out."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.contender import Target
from harness.errors import MachineError
from harness.paths import ROOT

if TYPE_CHECKING:
    from harness.config import Config


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves visible."""

    uuid: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: str

    @property
    def target(self) -> Target:
        return Target("cuda", self.name, self.capability, self.memory_bytes)


def gpus() -> list[Gpu]:
    """Visible GPUs in PCI order; none where there is no NVML, no driver or no device."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver, no permission: to us all the same, there is no GPU
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        driver = pynvml.nvmlSystemGetDriverVersion()
        found = [
            Gpu(
                uuid=pynvml.nvmlDeviceGetUUID(handle),
                name=pynvml.nvmlDeviceGetName(handle),
                capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                driver=driver,
            )
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(found: list[Gpu], wanted: str | None) -> list[Gpu]:
    """CUDA's rule: indices or UUID prefixes, cut at the first one that names no device."""
    if wanted is None:
        return found
    kept: list[Gpu] = []
    for item in (part.strip() for part in wanted.split(",")):
        if item.isdigit():
            match = found[int(item) : int(item) + 1]
        else:
            match = [gpu for gpu in found if item and gpu.uuid.startswith(item)]
        if not match:
            break
        kept += match[:1]
    return kept


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def find_target(device: str) -> Target:
    """The device that `device` (cpu or cuda) means here. Raises MachineError for cuda without a GPU."""
    if device == "cpu":
        return Target("cpu", cpu_name())
    found = gpus()
    if not found:
        raise MachineError("device: cuda needs an NVIDIA GPU, and none is visible here; set device: cpu, or see doctor")
    return found[0].target


def is_model(wanted: str | None, name: str) -> bool:
    """Whether a GPU's name is that of the model `wanted`, a word of it (V100S too); a GH200 is no H200. None: any."""
    word = rf"(?<![a-z0-9]){re.escape((wanted or '').lower())}(?![0-9])"
    return wanted is None or re.search(word, name.lower()) is not None


def check_machine(config: Config) -> Target:
    """The target of a run, or a MachineError when this machine is not the one the config was written for, or the run
    has records of another GPU."""
    target = find_target(config.device)
    if config.device == "cuda" and not is_model(config.gpu, target.name):
        raise MachineError(
            f"gpu: the config is for {config.gpu!r}, this is {target.name!r}; set gpu: null and another run name"
        )
    machines = [json.loads(path.read_text()) for path in (config.results / "records").glob("*.machine.json")]
    others = {m["device_name"] for m in machines if target.is_cuda or m["gpu_id"]} - {target.name}  # CPUs may change
    if others:
        named = ", ".join(sorted(others))
        raise MachineError(f"run: {config.results} has records of {named}, this is {target.name}; choose another name")
    return target


def slug(name: str) -> str:
    """A run name from a device name: 'NVIDIA GeForce RTX 4090' is 'geforce-rtx-4090'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")


def config_for_machine() -> tuple[dict[str, Any], str]:
    """The config of this machine as a mapping, and the file it comes from.

    The one whose `gpu` is the GPU's model; another GPU gets the V100's sweep under its own run name; no
    GPU gets smoke.
    """
    found = gpus()
    if not found:
        return _read("smoke")
    for path in sorted((ROOT / "config").glob("*.yaml")):
        raw, source = _read(path.stem)
        if raw.get("gpu") and is_model(raw["gpu"], found[0].name):
            return raw, source
    raw, source = _read("v100")
    own = {"run": slug(found[0].name), "gpu": None, "architectures": architectures(found[0].capability)}
    return {**raw, **own}, source


def architectures(capability: tuple[int, int]) -> list[str]:
    """Those a GPU can run of the architectures that kernels are built for: sm_90a on 9.0 alone, sm_70 below 8.0."""
    if capability < (8, 0):
        return ["sm_70"]
    return ["sm_80", "sm_90a"] if capability == (9, 0) else ["sm_80"]


def _read(name: str) -> tuple[dict[str, Any], str]:
    path = ROOT / "config" / f"{name}.yaml"
    return yaml.safe_load(path.read_text()), str(path.relative_to(ROOT))
