"""One (case, contender) on its way to its record."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.case import Case
from harness.config import Config
from harness.contender import Contender, Prepared, Unsupported
from harness.energy import EnergyResult
from harness.lazy import lazy_import
from harness.paths import ROOT
from harness.records import NO_ENERGY_CELL, Record, Sample
from harness.statistics import quartiles, ratio_by_rounds
from harness.strict import first_mistake
from harness.timers import Timer
from harness.timing import Timings
from harness.verify import Gate, Verdict

torch = lazy_import("torch")

PREPARED = (  # columns that a contender's Prepared fills
    *("backend", "kernel_arch", "built_arch", "kernel_hash", "variant"),
    *("format_bytes", "conversion_s", "resident_bytes", "note"),
)


@dataclass
class Cell:
    """A contender of the case being measured, and its record as it fills."""

    contender: Contender
    record: Record
    wanted: bool  # False: measured for the ratios only, its record is there
    prepared: Prepared | None = None
    gate: Gate | None = None
    timer: Timer | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def going(self) -> bool:
        return self.record.status == "ok"

    def end(self, status: str, reason: str) -> None:
        """Close the record early."""
        self.record.status, self.record.reason = status, reason
        self.release()

    def release(self) -> None:
        """Let go of the memory that measuring needs."""
        self.prepared = self.gate = self.timer = None

    def take_prepared(self, prepared: Prepared, setup_s: float) -> None:
        """Raises TypeError or ValueError for what a record cannot hold, before any of it is in there."""
        if not isinstance(prepared, Prepared):
            raise TypeError(f"prepare returned {type(prepared).__name__}; it must be a Prepared")
        fields = {name: getattr(prepared, name) for name in PREPARED}
        fields["setup_s"] = max(setup_s, prepared.conversion_s or 0.0)  # made for a case before
        fields["tuning"] = json.dumps(prepared.tuning, sort_keys=True) if prepared.tuning else None
        fields["reason"] = prepared.no_times
        if prepared.bytes_floor is not None:
            fields["bytes_floor"] = prepared.bytes_floor
        try:
            checked = Record.model_validate({**self.record.model_dump(), **fields})
        except ValidationError as error:
            raise ValueError(f"Prepared.{first_mistake(error)}") from None
        for name in fields:
            setattr(self.record, name, getattr(checked, name))
        self.prepared = prepared

    def take_verdict(self, verdict: Verdict, when: str = "") -> None:
        record = self.record
        record.error_max, record.error_ratio, record.error_limit = verdict.error, verdict.ratio, verdict.factor
        if not verdict.passed:
            self.end("incorrect", when + verdict.reason)

    def take_times(self, timings: Timings, baseline: Timings | None) -> None:
        record, cold, hot = self.record, timings.cold.accepted, timings.hot.accepted
        self.samples = timings.samples
        record.samples, record.samples_rejected = len(cold), len(timings.cold.samples) - len(cold)
        record.stop_reason, record.hot_method = timings.cold.stop_reason, self.timer.hot_method
        self._take_card_state()
        if self.timer.host_bound:
            self.add_note("a call waits for the host in itself: its times include the host's")
        if self.timer.cold_replays:
            self.add_note("cold samples replay a CUDA graph: one call has more launches than CUDA's queue holds")
        if not cold or not hot:
            self.end("unstable", f"no sample accepted: the card was slowed in every round ({record.throttled})")
            return
        record.cold_min_s = min(cold)
        record.cold_q1_s, record.cold_median_s, record.cold_q3_s = quartiles(cold)
        record.hot_min_s, record.hot_median_s = min(hot), statistics.median(hot)
        record.tflops = record.flops / record.cold_median_s / 1e12
        record.gbps = record.bytes_floor / record.cold_median_s / 1e9
        if record.tokens:
            record.tokens_per_gpu_s = record.tokens / record.cold_median_s
        if baseline:
            ratio = ratio_by_rounds(baseline.cold_rounds(), timings.cold_rounds())
            record.speedup, record.speedup_low, record.speedup_high = ratio or (None, None, None)

    def _take_card_state(self) -> None:
        record = self.record
        clocks = [s.sm_clock_mhz for s in self.samples if s.sm_clock_mhz is not None]
        powers = [s.power_w for s in self.samples if s.power_w is not None]
        throttles = {s.throttle for s in self.samples if s.throttle is not None}
        record.sm_clock_mhz = statistics.median(clocks) if clocks else None
        record.power_w = statistics.fmean(powers) if powers else None
        record.temperature_c = max((s.temperature_c for s in self.samples if s.temperature_c is not None), default=None)
        if throttles:
            record.throttled = "+".join(sorted({r for t in throttles for r in t.split("+")} - {"none"})) or "none"

    def take_parts(self, seconds: Mapping[str, float]) -> None:
        """Times of parts of the call, s."""
        shares = {part: round(s / self.record.hot_median_s, 4) for part, s in seconds.items()}
        self.record.parts = json.dumps(shares)

    def take_energy(self, result: EnergyResult) -> None:
        record = self.record
        record.energy_quality = result.quality
        if result.energy_j is None:
            return
        for column, value in (
            ("energy_j", result.energy_j),
            ("energy_net_j", result.energy_net_j),
            ("energy_source", result.source),
            ("energy_window_s", result.window_s),
            ("energy_period_s", result.period_s),
            ("energy_temperature_min_c", result.temperature_min_c),
            ("energy_temperature_max_c", result.temperature_max_c),
            ("power_w", result.power_w),
            ("idle_power_w", result.idle_power_w),
            ("flops_per_j", record.flops / result.energy_j),
            ("edp_js", result.energy_j * result.call_s),
        ):
            setattr(record, column, value)

    def add_note(self, note: str) -> None:
        self.record.note = f"{self.record.note}; {note}" if self.record.note else note


def draft(config: Config, case: Case, contender: Contender, machine: dict[str, Any]) -> Record:
    """The record as far as it is known before anything runs; `machine` has the columns of provenance."""
    return Record(
        run=config.run,
        experiment=case.experiment,
        panel=case.panel,
        case_id=case.id,
        op=case.op.name,
        contender=contender.name,
        role=contender.role,
        baseline=config.experiments[case.experiment].baseline,
        flops=case.op.flops(case.params),
        bytes_floor=case.op.bytes_floor(case.params),
        code_hash=contender.code_hash(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        energy_quality=NO_ENERGY_CELL,
        **case.op.columns(case.params),
        **machine,
    )


def classify(error: BaseException) -> tuple[str, str]:
    """Status and one-line reason of an error."""
    if isinstance(error, Unsupported):
        return "unsupported", " ".join(str(error).split())
    text = " ".join(str(error).split()).replace(str(ROOT), ".").replace(str(Path.home()), "~")
    reason = f"{type(error).__name__}: {text}"[:300]
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text.lower() or "can't allocate memory" in text)
    )
    return ("out_of_memory" if memory else "crashed"), reason
