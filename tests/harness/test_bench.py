"""One case in this process: memory let go, energy taken, ratios, notes. Failures are in test_measure.py."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import bench as bench_module
from harness.bench import Bench, ContextLost
from harness.cell import Cell, classify
from harness.config import Config, Energy, parse_config
from harness.contender import Prepared, Target, discover
from harness.energy import EnergyMeter, EnergyResult
from harness.records import NO_ENERGY_CELL
from harness.timers import flush_buffer

CONTENDERS = Path(__file__).parent / "contenders"


def config(contenders: list[str], energy: list[str] = [], baseline: str = "good", **panel: Any) -> Config:  # noqa: B006
    shapes = [{"m": 64, "k": 96, "n": 8, "sparsity": 0.5, "seed": random.randrange(2**31)}]
    cells = [{"contenders": energy}] if energy else []
    one = {"name": "p", "title": "p", "shapes": shapes, "energy": cells, **panel}
    raw = {
        "run": "t",
        "device": "cpu",
        "contender_folders": [str(CONTENDERS)],
        "measure": {"warmup_s": 0, "min_samples": 3, "rounds": 2, "min_time_s": 0.005, "max_time_s": 0.05},
        "experiments": {
            "e": {"op": "spmm", "question": "q", "baseline": baseline, "contenders": contenders, "panels": [one]}
        },
    }
    return parse_config(raw, "test")


def measure(loaded: Config, wanted: list[str], companion: str | None = None, **fields: Any) -> dict[str, Cell]:
    begun: list[tuple[str | None, str]] = fields.pop("begun", [])
    bench = Bench(
        config=loaded,
        target=Target("cpu", "test"),
        machine={"device_name": "test"},
        card=None,
        energy=fields.pop("energy", "no meter"),
        flush=flush_buffer("cpu"),
        begin=lambda contender, stage: begun.append((contender, stage)),
    )
    (case,) = loaded.cases("e", loaded.panel("e", "p"))
    cells = bench.cells(case, wanted, companion)
    bench.measure(case, cells)
    return {cell.name: cell for cell in cells}


def test_records_of_a_case_are_whole() -> None:
    begun: list = []
    cells = measure(config(["good", "slow"]), ["good", "slow"], begun=begun)
    for name, cell in cells.items():
        record = cell.record
        assert record.status == "ok"
        assert 0 < record.cold_min_s <= record.cold_q1_s <= record.cold_median_s <= record.cold_q3_s
        assert record.hot_min_s <= record.hot_median_s
        assert record.tflops == pytest.approx(2 * 64 * 96 * 8 / record.cold_median_s / 1e12)
        assert record.gbps == pytest.approx(record.bytes_floor / record.cold_median_s / 1e9)
        assert record.error_ratio <= record.error_limit == 2
        assert record.samples == sum(s.metric == "cold" and s.accepted for s in cell.samples)
        assert min(record.setup_s, record.verify_s, record.window_s) > 0
        assert record.energy_quality == "not an energy cell of the config"
        stages = [stage for who, stage in begun if who == name]
        assert stages[:3] == ["check", "prepare", "verify"]
        assert stages[-1] == "verify again"
    assert cells["good"].record.speedup == 1
    assert cells["slow"].record.speedup < 1
    assert cells["slow"].record.speedup_low <= cells["slow"].record.speedup <= cells["slow"].record.speedup_high


def test_a_companion_is_timed_beside_and_marked_as_not_wanted() -> None:
    cells = measure(config(["good", "slow"]), ["slow"], companion="good")
    assert cells["slow"].record.speedup is not None
    assert cells["slow"].wanted
    assert not cells["good"].wanted


@pytest.mark.parametrize("names", [["wrong_later", "good"], ["good", "wrong_later"]])
def test_no_speedup_over_a_baseline_that_was_wrong_after_timing(names: list[str]) -> None:
    cells = measure(config(names, baseline="wrong_later"), names)
    assert cells["wrong_later"].record.status == "incorrect"
    assert cells["good"].record.status == "ok"
    assert cells["good"].record.speedup is None


def test_a_contender_that_writes_to_the_inputs_spoils_no_other() -> None:
    names = ["prunes_its_input", "slow", "scales_its_input", "good"]
    cells = measure(config(names), names)
    assert {name: cell.record.status for name, cell in cells.items()} == {
        "prunes_its_input": "incorrect",
        "slow": "ok",
        "scales_its_input": "incorrect",
        "good": "ok",
    }
    assert cells["prunes_its_input"].record.reason == "it writes to its input w, which all contenders share"
    assert cells["scales_its_input"].record.reason == "it writes to its input x, which all contenders share"


def test_setup_takes_what_only_a_first_call_does() -> None:
    loaded = config(["good"])
    good = discover((CONTENDERS,))["spmm"]["good"]
    calls: list[int] = []
    original = type(good).call

    def slow_first(self: Any, w: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        calls.append(1)
        if len(calls) == 1:
            bench_module.time.sleep(0.2)
        return original(self, w, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(good), "call", slow_first)
        record = measure(loaded, ["good"])["good"].record
    assert record.setup_s > 0.15
    assert record.cold_median_s < 0.1


def test_memory_is_let_go_when_a_case_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = config(["good", "raises", "oom", "wrong"])
    (case,) = loaded.cases("e", loaded.panel("e", "p"))
    alive: list[weakref.ref] = []
    original = type(case.op).inputs

    def watched(self: Any, params: Any, device: str) -> Any:
        inputs = original(self, params, device)
        alive.extend(weakref.ref(t) for t in inputs.values())
        return inputs

    monkeypatch.setattr(type(case.op), "inputs", watched)
    cells = measure(loaded, ["good", "raises", "oom", "wrong"])
    gc.collect()
    assert len(alive) == 2
    assert [ref() for ref in alive] == [None, None]
    assert {name: cell.record.status for name, cell in cells.items()}["oom"] == "out_of_memory"


class Memory:
    """A device's memory as torch.cuda counts it: what is in use, and the most of it since the last reset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.used = self.peak = 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.used)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(bench_module, "_bytes_outside_torch", lambda: 0)

    def reset(self) -> None:
        self.peak = self.used

    def take(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)


class Output:
    """Memory that only the collector of cycles gives back."""

    def __init__(self, memory: Memory, size: int):
        self._memory, self._size, self._itself = memory, size, self
        memory.take(size)

    def __del__(self) -> None:
        self._memory.take(-self._size)


def test_the_peak_of_a_call_does_not_miss_what_garbage_gave_back_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    loaded = config(["good"])
    (case,) = loaded.cases("e", loaded.panel("e", "p"))
    bench = Bench(loaded, Target("cuda", "test"), {}, None, "no meter", flush_buffer("cpu"), lambda *_: None)
    (cell,) = bench.cells(case, ["good"], None)

    def run() -> dict[str, Any]:
        gc.collect()  # as it may happen at any time
        return {"y": Output(memory, 1000)}

    prepared = Prepared(run, backend="library")
    for _ in range(2):  # whose outputs become garbage
        _, outputs = bench._measured_call(cell, prepared)
        del outputs
        assert cell.record.peak_bytes == 1000


def test_inputs_that_cannot_be_made_end_every_cell_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = config(["good", "slow"])
    (case,) = loaded.cases("e", loaded.panel("e", "p"))

    def too_large(self: Any, params: Any, device: str) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB")

    monkeypatch.setattr(type(case.op), "inputs", too_large)
    for cell in measure(loaded, ["good", "slow"]).values():
        assert cell.record.status == "out_of_memory"
        assert cell.record.reason.startswith("making the inputs: OutOfMemoryError: CUDA out of memory")


def test_energy_is_taken_on_the_cells_of_the_config_only(monkeypatch: pytest.MonkeyPatch) -> None:
    result = EnergyResult(
        "good", 0.5, 0.4, 500.0, 100.0, 1e-3, "counter", 5.0, 0.1, temperature_min_c=50, temperature_max_c=60
    )
    meter = EnergyMeter(None, Energy(), None, None, None)
    monkeypatch.setattr(EnergyMeter, "measure", lambda self, load: result)
    monkeypatch.setattr(bench_module.CpuTimer, "load", None, raising=False)
    cells = measure(config(["good", "slow"], energy=["slow"]), ["good", "slow"], energy=meter)
    record = cells["slow"].record
    assert (record.energy_j, record.energy_net_j, record.energy_quality) == (0.5, 0.4, "good")
    assert (record.power_w, record.idle_power_w, record.energy_source) == (500.0, 100.0, "counter")
    assert record.flops_per_j == record.flops / 0.5
    assert record.edp_js == 0.5 * 1e-3
    assert cells["good"].record.energy_j is None
    assert cells["good"].record.energy_quality == "not an energy cell of the config"


def test_without_a_meter_the_reason_stands_in_the_record() -> None:
    record = measure(config(["good"], energy=["good"]), ["good"], energy="no NVML here")["good"].record
    assert record.energy_quality == "no NVML here"
    assert record.energy_j is None


def test_what_fails_in_the_energy_pass_leaves_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(meter: EnergyMeter, load: object) -> EnergyResult:
        raise RuntimeError("the counter is gone")

    monkeypatch.setattr(EnergyMeter, "measure", fails)
    monkeypatch.setattr(bench_module.CpuTimer, "load", None, raising=False)
    meter = EnergyMeter(None, Energy(), None, None, None)
    record = measure(config(["good"], energy=["good"]), ["good"], energy=meter)["good"].record
    assert (record.status, record.reason) == ("ok", None)
    assert record.cold_median_s > 0
    assert record.energy_j is None
    assert record.energy_quality == "failed: RuntimeError: the counter is gone"


def test_what_is_not_timed_has_no_energy() -> None:
    for energy, quality in ((["untimed"], "the GPU emulates its instruction"), ([], NO_ENERGY_CELL)):
        record = measure(config(["untimed"], energy=energy), ["untimed"])["untimed"].record
        assert (record.energy_j, record.energy_quality) == (None, quality)


def test_a_lost_context_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Bench) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    loaded = config(["raises", "good"])
    monkeypatch.setattr(Bench, "_synchronize", broken)
    with pytest.raises(ContextLost) as caught:
        measure(loaded, ["raises", "good"])
    assert caught.value.contender == "raises"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("CUDA error: misaligned address"), "crashed"),
        (ValueError("out of memory of a kind"), "crashed"),
    ],
)
def test_errors_have_one_status_and_one_line(error: Exception, status: str) -> None:
    found, reason = classify(error)
    assert found == status
    assert reason.startswith(type(error).__name__)
    assert "\n" not in reason


def test_reasons_tell_no_private_path() -> None:
    assert str(Path.home()) not in classify(OSError(f"{Path.home()}/secret\nx"))[1]
