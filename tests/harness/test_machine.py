"""What a machine is, by a scripted NVML, and which config it gets."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import yaml

from harness import machine
from harness.collect import machine_path
from harness.config import parse_config
from harness.contender import Target
from harness.errors import MachineError
from harness.machine import Gpu
from harness.paths import ROOT


def gpu(name: str, number: int = 0, capability: tuple[int, int] = (9, 0)) -> Gpu:
    return Gpu(f"GPU-{number}abc", name, capability, 80 * 2**30, "580.1")


@pytest.fixture
def on(monkeypatch, tmp_path):
    """on("NVIDIA H200"): this machine has these GPUs, and an empty folder of results."""
    monkeypatch.chdir(tmp_path)

    def set_gpus(*names: str) -> None:
        monkeypatch.setattr(machine, "gpus", lambda: [gpu(name, i) for i, name in enumerate(names)])

    return set_gpus


def config(**changes):
    raw = yaml.safe_load((ROOT / "config/h200.yaml").read_text())
    return parse_config({**raw, **changes}, "h200.yaml")


@dataclass
class FakeMemory:
    total: int


class FakeNvml:
    """Two GPUs of NVML, in PCI order."""

    devices = (("NVIDIA V100", "GPU-aa", (7, 0)), ("NVIDIA H200", "GPU-bb", (9, 0)))
    open = 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.devices[index]

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetName(self, handle):
        return handle[0]

    def nvmlDeviceGetUUID(self, handle):
        return handle[1]

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return list(handle[2])

    def nvmlDeviceGetMemoryInfo(self, handle):
        return FakeMemory(32 * 2**30)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["NVIDIA V100", "NVIDIA H200"]),
        ("", []),
        ("1", ["NVIDIA H200"]),
        ("1,0", ["NVIDIA H200", "NVIDIA V100"]),
        ("GPU-a", ["NVIDIA V100"]),
        ("0,7,1", ["NVIDIA V100"]),  # CUDA stops at the first that names none
        ("-1", []),
    ],
)
def test_gpus_are_those_cuda_would_show(monkeypatch, visible, names):
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = machine.gpus()
    assert [g.name for g in found] == names
    assert fake.open == 0
    assert all(g.target == Target("cuda", g.name, g.capability, 32 * 2**30) for g in found)


@pytest.mark.parametrize(
    ("names", "run", "source", "written_for"),
    [
        ([], "smoke", "config/smoke.yaml", None),
        (["Tesla V100-SXM2-32GB"], "v100", "config/v100.yaml", "V100"),
        (["NVIDIA H200"], "h200", "config/h200.yaml", "H200"),
        (["NVIDIA A100-SXM4-80GB"], "a100-sxm4-80gb", "config/v100.yaml", None),
        (["NVIDIA GH200 480GB"], "gh200-480gb", "config/v100.yaml", None),
        (["Tesla V100S-PCIE-32GB"], "v100", "config/v100.yaml", "V100"),
        (["NVIDIA GeForce RTX 4090"], "geforce-rtx-4090", "config/v100.yaml", None),
        (["NVIDIA H200", "Tesla V100-SXM2-32GB"], "h200", "config/h200.yaml", "H200"),
    ],
)
def test_plain_snakemake_takes_the_config_of_the_machine(on, names, run, source, written_for):
    on(*names)
    raw, found = machine.config_for_machine()
    assert (raw["run"], found, raw.get("gpu")) == (run, source, written_for)
    parse_config(raw, found)


def test_another_gpu_gets_the_v100_sweep_with_kernels_it_can_run(on):
    on("NVIDIA A100-SXM4-80GB")
    raw, _ = machine.config_for_machine()
    v100 = yaml.safe_load((ROOT / "config/v100.yaml").read_text())
    assert raw["experiments"] == v100["experiments"]


@pytest.mark.parametrize(
    ("capability", "architectures"),
    [
        ((7, 5), ["sm_70"]),
        ((8, 0), ["sm_80"]),
        ((8, 9), ["sm_80"]),
        ((9, 0), ["sm_80", "sm_90a"]),
        ((10, 0), ["sm_80"]),
    ],
)
def test_architectures_are_those_that_run_on_the_gpu(capability, architectures):
    assert machine.architectures(capability) == architectures


def test_cuda_without_a_gpu_is_one_line(on):
    on()
    with pytest.raises(MachineError, match="device: cuda needs an NVIDIA GPU"):
        machine.check_machine(config())


def test_a_config_for_another_gpu_is_one_line(on):
    on("Tesla V100-SXM2-32GB")
    with pytest.raises(MachineError, match=r"gpu: the config is for 'H200', this is 'Tesla V100-SXM2-32GB'"):
        machine.check_machine(config())


def test_a_config_for_any_gpu_runs_on_each(on):
    on("Tesla V100-SXM2-32GB")
    assert machine.check_machine(config(gpu=None)).name == "Tesla V100-SXM2-32GB"


def measured_by(device_name, gpu_id):
    path = machine_path(config(), "attention/forward_d64")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"device_name": device_name, "gpu_id": gpu_id}))


@pytest.mark.parametrize("changes", [{"device": "cpu", "gpu": None}, {"gpu": None}], ids=["a CPU", "another GPU"])
def test_a_run_keeps_to_the_gpu_of_its_records(on, changes):
    on("NVIDIA H100")
    measured_by("NVIDIA H200", "0a1b")
    with pytest.raises(MachineError, match=r"run: results/h200 has records of NVIDIA H200, this is .*; choose another"):
        machine.check_machine(config(**changes))


def test_records_of_the_same_gpu_are_added_to(on):
    on("NVIDIA H200")
    measured_by("NVIDIA H200", "another card's")
    assert machine.check_machine(config()).name == "NVIDIA H200"


def test_a_smoke_run_may_change_its_cpu_but_not_go_to_a_gpu(on):
    on("NVIDIA H200")
    measured_by("a CPU of another node", None)
    assert machine.check_machine(config(device="cpu", gpu=None)).device == "cpu"
    with pytest.raises(MachineError, match="has records of a CPU of another node, this is NVIDIA H200"):
        machine.check_machine(config())


def test_a_cpu_config_runs_beside_a_gpu(on):
    on("NVIDIA H200")
    assert machine.check_machine(config(device="cpu", gpu=None)).device == "cpu"
