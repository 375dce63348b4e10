"""Synthetic records for tests only: times follow a made-up rate per contender and measure nothing."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from harness.contender import discover
from harness.figures.run import Run, read_records
from harness.ops import OPS
from harness.records import NO_ENERGY_CELL, CurvePoint, Record
from harness.throughput import ModelRow

ATTENTION = {  # made-up TFLOP/s on the made-up GPU
    "unfused_fp16": 60, "sdpa_math": 15, "sdpa_efficient": 130, "xformers": 131, "flex_attention": 260,
    "sdpa_flash": 300, "flash_attn": None, "flash_attn_3": 520, "flash_attn_4": None, "sdpa_cudnn": 450,
    "spark_attention": 240, "spark_attention_fp16acc": 280,
}  # fmt: skip
SPMM = {"cublas": 4.1e12, "cusparse_csr": 2e11, "semi_structured": None,
        "flash_llm_tiled_csl": 2.6e12, "flash_llm_bitmap": 2.2e12}  # fmt: skip
BLOCK_SPARSE = {"flex_attention": None, "sdpa_masked": 30, "sdpa_dense_cudnn": 450, "sdpa_dense_flash": 300,
                "spark_attention_dense": 400, "sat_block_sparse": 300}  # fmt: skip
TRAINING = {"unfused_fp16": 60, "sdpa_efficient": 130, "sdpa_flash": 280, "sdpa_cudnn": 400, "spark_attention": 240}
# Seconds of the rest of a step, and of attention at 4096 tokens.
SPARSE_TRAINING = {"dense": (2e-3, 3e-2), "dense_flash": (2e-3, 6e-3), "sat_dense_phase": (3e-3, 6e-3),
                   "sat": (2e-3, None), "window": (2e-3, 1e-3)}  # fmt: skip
DECODING = {"pytorch_fp16": 3.6e12, "flash_llm_tiled_csl": 2.6e12, "flash_llm_bitmap": 2.4e12}
LABELS = {
    "unfused_fp16": "unfused FP16", "sdpa_math": "SDPA math", "sdpa_efficient": "SDPA efficient",
    "xformers": "xFormers", "flex_attention": "FlexAttention", "sdpa_flash": "SDPA flash (FA2)",
    "flash_attn": "flash-attn", "flash_attn_3": "FlashAttention-3", "flash_attn_4": "FlashAttention-4",
    "sdpa_cudnn": "SDPA cuDNN", "spark_attention": "SparkAttention",
    "spark_attention_fp16acc": "SparkAttention fp16 acc",
    "cublas": "cuBLAS", "cusparse_csr": "cuSPARSE CSR", "semi_structured": "2:4 (cuSPARSELt)",
    "flash_llm_tiled_csl": "Flash-LLM Tiled-CSL", "flash_llm_bitmap": "Flash-LLM bitmap",
    "sdpa_masked": "SDPA masked", "sdpa_dense_cudnn": "cuDNN dense", "sdpa_dense_flash": "flash dense",
    "sat_block_sparse": "SAT block-sparse", "spark_attention_dense": "ours dense",
    "pytorch_fp16": "PyTorch FP16 (dense)",
    "dense": "dense, materialised", "dense_flash": "dense, SDPA flash", "sat": "SAT", "window": "sliding window",
    "sat_dense_phase": "SAT, dense phase, watched",
}  # fmt: skip
OURS = ("spark", "flash_llm", "sat")
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Maker:
    """Makes records of one synthetic run, the same for the same seed."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.cuda = device == "cuda"
        self.random = random.Random(seed)
        self.count = 0

    def record(self, op: str, contender: str, seconds: float | None, case: dict[str, Any], **changes: Any) -> Record:
        params = OPS[op].Params.model_validate(case)
        flops = OPS[op].flops(params)
        ours = contender.startswith(OURS)
        self.count += 1
        fields: dict[str, Any] = {
            "run": "synthetic", "experiment": op, "panel": "main", "case_id": f"{op}.{params.slug()}", "op": op,
            "contender": contender, "role": "ours" if ours else "baseline", "commit": "0123456789abcdef0123",
            "device_name": "Synthetic GPU" if self.cuda else "Synthetic CPU",
            "started_at": (START + timedelta(seconds=3 * self.count)).isoformat(),
            "flops": flops, "bytes_floor": OPS[op].bytes_floor(params),
            "energy_quality": "no NVML on a CPU" if not self.cuda else NO_ENERGY_CELL,
            **OPS[op].columns(params),
        }  # fmt: skip
        if seconds is None:
            fields |= {"status": "unavailable", "reason": "package not installed; pip install it"}
        else:
            seconds *= self.random.uniform(0.97, 1.03)
            fields |= {
                "backend": ("kernel" if self.cuda else "reference") if ours else "library",
                "cold_median_s": seconds, "cold_q1_s": 0.99 * seconds, "cold_q3_s": 1.01 * seconds,
                "hot_median_s": 0.9 * seconds, "tflops": flops / seconds / 1e12, "samples": 20,
                "error_limit": 3.0 if fields["direction" if "direction" in fields else "op"] == "backward" else 2.0,
                "error_ratio": self.random.uniform(0.3, 1.6), "error_max": 1e-3,
            }  # fmt: skip
            if self.cuda:
                power = self.random.uniform(350, 690)
                fields |= {
                    "sm_clock_mhz": 1980 - power / 2, "power_w": power, "temperature_c": 40 + power / 25,
                    "throttled": "sw_power_cap" if power > 650 else "none",
                    "peak_bytes": self.peak(op, contender, case),
                }  # fmt: skip
        return Record(**(fields | changes))

    def peak(self, op: str, contender: str, case: dict[str, Any]) -> int | None:
        if op not in ("attention", "training_step"):
            return None
        params = OPS[op].Params.model_validate(case)
        if op == "training_step":
            params = params.attention("forward").model_copy(update={"batch": params.batch * params.shape.layers})
        linear = 2 * params.batch * params.num_heads * params.seqlen_q * params.head_dim
        square = 2 * params.batch * params.num_heads * params.seqlen_q * params.seqlen_k
        return linear + (2 * square if contender in ("unfused_fp16", "sdpa_math") else linear // 8)


def with_speedups(records: list[Record], baseline: str) -> list[Record]:
    """The same records with `speedup` over the baseline's time of the same case."""
    times = {r.case_id: r.cold_median_s for r in records if r.contender == baseline}
    for record in records:
        record.baseline = baseline
        if record.cold_median_s and times.get(record.case_id):
            record.speedup = times[record.case_id] / record.cold_median_s
            record.speedup_low, record.speedup_high = 0.98 * record.speedup, 1.02 * record.speedup
    return records


def attention(maker: Maker, lengths: tuple[int, ...], tokens: int, hidden: int) -> list[Record]:
    records = []
    grid = itertools.product(("forward", "backward"), (64, 128), (False, True), lengths)
    for direction, head_dim, causal, seqlen in grid:
        case = {"direction": direction, "head_dim": head_dim, "causal": causal, "seqlen": seqlen,
                "tokens": tokens, "hidden": hidden}  # fmt: skip
        params = OPS["attention"].Params.model_validate(case)
        for contender, rate in ATTENTION.items():
            if direction == "backward" and contender in ("flash_attn_3", "spark_attention_fp16acc"):
                records.append(
                    maker.record("attention", contender, None, case, status="unsupported", reason="forward only")
                )
                continue
            scale = 1.0 if maker.cuda else 1e-4
            rate = rate and rate * scale * (0.7 + 0.3 * seqlen / max(lengths)) * (1.3 if head_dim == 128 else 1.0)
            seconds = rate and OPS["attention"].flops(params) / rate / 1e12
            record = maker.record("attention", contender, seconds, case)
            if contender == "sdpa_math" and seqlen >= 8192:
                record = maker.record(
                    "attention", contender, None, case, status="out_of_memory", reason="needs 128 GiB"
                )
            if contender == "unfused_fp16" and seqlen == 16384 and direction == "backward":
                record = maker.record("attention", contender, None, case, status="timeout", reason="180 s")
            records.append(record)
    return with_speedups(records, "unfused_fp16")


def spmm(maker: Maker, shapes: Any, columns: tuple[int, ...], sparsities: tuple[float, ...]) -> list[Record]:
    records = []
    for (m, k), n, sparsity in itertools.product(shapes, columns, sparsities):
        case = {"m": m, "n": n, "k": k, "sparsity": sparsity}
        nonzeros = m * k * (1 - sparsity)
        size = {"cublas": 2 * m * k, "cusparse_csr": 6 * nonzeros, "semi_structured": 2 * m * k,
                "flash_llm_tiled_csl": 4 * nonzeros + m * k / 2048,
                "flash_llm_bitmap": 2 * nonzeros + m * k / 8}  # fmt: skip
        for contender, bandwidth in SPMM.items():
            scale = 1.0 if maker.cuda else 1e-3
            seconds = bandwidth and size[contender] / (bandwidth * scale) * (1 + n / 400) + 2e-6
            floor = int(size[contender] + 2 * n * (m + k))
            record = maker.record("spmm", contender, seconds, case, bytes_floor=floor)
            if record.role == "ours":
                record.conversion_s, record.tuning = m * k * 5e-10, '{"format_by_rule": "bitmap"}'
            if contender == "semi_structured":
                record.status, record.reason = "unsupported", "a random pattern violates 2:4"
            if seconds:
                record.gbps = floor / record.cold_median_s / 1e9
                record.bandwidth_fraction = record.gbps / (4270 * scale)
            records.append(record)
    return with_speedups(records, "cublas")


def block_sparse(maker: Maker, lengths: tuple[int, ...], densities: tuple[float, ...]) -> list[Record]:
    records = []
    for direction, seqlen, density in itertools.product(("forward", "backward"), lengths, densities):
        case = {"direction": direction, "batch": 1, "num_heads": 4, "head_dim": 64, "seqlen": seqlen, "block": 32,
                "density": density}  # fmt: skip
        params = OPS["block_sparse_attention"].Params.model_validate(case)
        dense = 4.0 * params.num_heads * seqlen**2 * 64 * (1 if direction == "forward" else 2.5)
        for contender, rate in BLOCK_SPARSE.items():
            work = density * dense if contender in ("flex_attention", "sat_block_sparse") else dense
            seconds = rate and work / (rate * 1e12 * (1.0 if maker.cuda else 1e-4)) + 3e-6
            records.append(maker.record("block_sparse_attention", contender, seconds, case))
    return with_speedups(records, "sdpa_dense_cudnn")


def training(maker: Maker, models: tuple[str, ...], lengths: tuple[int, ...], tokens: int) -> list[Record]:
    """Made-up rates of the attention, everything else at 250 TFLOP/s; the baseline is out of memory from 8192 on."""
    records = []
    for model, seqlen in itertools.product(models, lengths):
        case = {"model": model, "seqlen": seqlen, "tokens": tokens}
        params = OPS["training_step"].Params.model_validate(case)
        attention_flops = params.shape.layers * sum(
            OPS["attention"].flops(params.attention(direction)) for direction in ("forward", "backward")
        )
        scale = 1e12 * (1.0 if maker.cuda else 1e-4)
        rest = (OPS["training_step"].flops(params) - attention_flops) / (250 * scale)
        for contender, rate in TRAINING.items():
            record = maker.record("training_step", contender, rest + attention_flops / (rate * scale), case)
            if contender == "unfused_fp16" and seqlen >= 8192:
                record.status, record.reason = "out_of_memory", "OutOfMemoryError: CUDA out of memory"
                record.cold_median_s = record.tflops = record.peak_bytes = None
            records.append(record)
    return with_speedups(records, "unfused_fp16")


def sparse_training(maker: Maker, cases: list[tuple[int, float]], tokens: int) -> list[Record]:
    """SAT's attention takes a fused one's time times twice the density."""
    records = []
    for seqlen, density in cases:
        case = {"seqlen": seqlen, "tokens": tokens, "density": density}
        for contender, (rest, attention) in SPARSE_TRAINING.items():
            seconds = rest + (attention or 2 * density * 6e-3) * seqlen / 4096
            record = maker.record("sparse_training_step", contender, seconds, case)
            if maker.cuda:
                record.peak_bytes = 2**31 + (2**22 * seqlen if contender == "dense" else 0)
            if contender == "dense" and seqlen > 8192:
                record.status, record.reason = "out_of_memory", "OutOfMemoryError: CUDA out of memory"
                record.cold_median_s = record.tflops = record.peak_bytes = None
            records.append(record)
    return with_speedups(records, "dense")


def decoding(maker: Maker, models: tuple[str, ...], batches: tuple[int, ...]) -> list[Record]:
    """Made-up bandwidths; OPT-175B fits as a bitmap only."""
    records, op = [], OPS["decode_step"]
    for model, batch in itertools.product(models, batches):
        case = {"model": model, "batch": batch, "sparsity": 0.8}
        params = op.Params.model_validate(case)
        for contender, rate in DECODING.items():
            step = discover()["decode_step"][contender]
            held = step.stored_bytes(params.shape.pruned_elements, 0.8)
            besides = op.bytes_floor(params) - 2 * params.shape.pruned_elements
            scale = 1.0 if maker.cuda else 1e-3
            record = maker.record("decode_step", contender, (held + besides) / (rate * scale), case)
            record.resident_bytes = int(held + besides)
            record.tokens_per_gpu_s = batch / record.cold_median_s
            record.parts = '{"attention": 0.2, "output": 0.05, "products": 0.7}'
            if held + besides > 145e9:
                record.status, record.reason = "unsupported", "needs 371 GB: at least 3 of them, and one is used here"
                record.cold_median_s = record.tflops = record.tokens_per_gpu_s = record.resident_bytes = None
            records.append(record)
    return with_speedups(records, "pytorch_fp16")


def curves(steps: int = 200) -> pd.DataFrame:
    """A falling loss, with noise by seed that the contenders share."""
    roles = {"unfused_fp16": "baseline", "spark_attention": "ours"}
    rows = []
    for seed, (contender, role) in itertools.product(range(3), roles.items()):
        noise = random.Random(seed)
        for step in range(steps):
            loss = 2 + 4 / (1 + step) + noise.gauss(0, 0.3) + 1e-3 * (role == "ours")
            point = CurvePoint(contender=contender, role=role, baseline="unfused_fp16", seed=seed, step=step, loss=loss)
            rows.append(point.model_dump())
    return pd.DataFrame(rows)


def trainings(folder: Path) -> None:
    """Two ended runs of `voltabench train`, in the folder of a run: dense, and SAT with its transition at step 37."""
    for method, moved in (("dense_flash", None), ("sat", 37)):
        training_run(folder, method, moved, 0.5)


def training_run(folder: Path, method: str, moved: int | None, accuracy: float) -> None:
    """One of them; `moved` is the step of its transition."""
    own = folder / "training" / f"listops-{method}-seed0"
    own.mkdir(parents=True, exist_ok=True)
    lines = []
    for step in range(0, 100, 4):
        phase = "sparse" if moved and step >= moved else "dense"
        line = {"step": step, "phase": phase, "loss": 2 / (1 + step), "seconds": 0.1 * step}
        if moved and step < moved:
            distance = [1 / step, 2 / step] if step else [None, None]
            line |= {"skewness": [step / 20, step / 15], "distance": distance}
        lines.append(json.dumps(line))
    (own / "steps.jsonl").write_text("\n".join(lines))
    ended = {
        "task": "listops", "method": method, "seed": 0, "steps": 100, "source": "generated", "test_accuracy": accuracy,
        "device_name": "Synthetic GPU", "commit": "0123456789ab" * 3 + "cdef",
        "min_skewness": 1.7 if moved else None, "max_change": 0.2 if moved else None,
        "peak_bytes": {"dense": 3 * 2**30, "sparse": 2**29} if moved else {},
        "patterns": [[[1, 0, 0], [0, 1, 0], [0, 1, 0]], [[0, 0, 0], [1, 1, 0], [0, 0, 1]]] if moved else [],
    }  # fmt: skip
    (own / "run.json").write_text(json.dumps(ended))


def planned_training(method: str) -> dict:
    """As Config.training_settings has it."""
    return {"task": "listops", "method": method, "seed": 0, "steps": 100, "source": "generated"}


def add_energy(maker: Maker, records: list[Record]) -> list[Record]:
    """Energy on some cells, as a run takes it on its headline cells."""
    for record in records:
        headline = (
            (record.op == "attention" and record.seqlen_q == 4096 and record.head_dim == 128)
            or (record.op == "spmm" and record.n == 16 and record.sparsity == 0.8 and record.m == 28672)
            or (record.model == "bert_base" and record.seqlen_q == 4096)
            or (record.op == "decode_step" and record.batch == 16)
        )
        if headline and record.cold_median_s:
            record.power_w, record.idle_power_w = maker.random.uniform(400, 690), 75.0
            record.energy_j = record.power_w * record.cold_median_s
            record.energy_net_j = (record.power_w - record.idle_power_w) * record.cold_median_s
            record.energy_quality, record.energy_source = "good", "counter"
    return records


def gpu_records(seed: int = 0) -> list[Record]:
    """The size of a real sweep."""
    maker = Maker("cuda", seed)
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    shapes = ((21504, 7168), (7168, 7168), (28672, 7168), (7168, 28672))
    records = attention(maker, lengths, 16384, 2048)
    records += spmm(maker, shapes, (8, 16, 32), (0.6, 0.7, 0.8, 0.9))
    records += block_sparse(maker, (1024, 2048), (0.065, 0.13, 0.22, 0.52, 1.0))
    records += training(maker, ("bert_base", "gpt2"), lengths, 16384)
    cases = [*((seqlen, 0.04) for seqlen in (1024, 2048, 4096, 16384)), (4096, 0.25), (4096, 0.9)]
    records += sparse_training(maker, cases, 65536)
    records += decoding(maker, ("opt_30b", "opt_175b"), (8, 16, 32, 64))
    return add_energy(maker, records)


def cpu_records(seed: int = 0) -> list[Record]:
    """The size of a smoke run."""
    maker = Maker("cpu", seed)
    records = attention(maker, (64, 128), 128, 128)
    records += spmm(maker, ((256, 128), (192, 320)), (8, 17), (0.7, 0.8, 0.9))
    records += training(maker, ("tiny_encoder", "tiny_decoder"), (32, 128), 128)
    records += sparse_training(maker, [(64, 0.5), (128, 0.5)], 128)
    records += decoding(maker, ("tiny_opt",), (2, 8))
    return records + block_sparse(maker, (128,), (0.25, 1.0))


def many_records(count: int) -> Iterator[Record]:
    """`count` records of a large sweep."""
    seeds = (gpu_records(seed) for seed in itertools.count())
    renamed = (r.model_copy(update={"experiment": f"{r.experiment}_{i}"}) for i, rs in enumerate(seeds) for r in rs)
    return itertools.islice(renamed, count)


def samples_of(records: list[Record]) -> list[dict[str, Any]]:
    """Six rounds of two cold samples for each record with a time."""
    spread = [0.98, 1.0, 1.0, 1.02, 0.99, 1.01]
    return [
        {"experiment": r.experiment, "panel": r.panel, "case_id": r.case_id, "contender": r.contender, "metric": "cold",
         "round": number, "seconds": factor * r.cold_median_s, "accepted": True}
        for r in records if r.cold_median_s for number, factor in enumerate(spread) for _ in range(2)
    ]  # fmt: skip


def model_rows() -> list[dict[str, object]]:
    """Rows of model.csv: one bound by what binds, one bound by latency and measured, one that could not be modelled."""
    arch = {"source_arch": "sm_70", "built_arch": "sm_70"}
    rows = [
        ModelRow(gpu="V100", kernel="first_sm70", op="attention", clock_mhz=1530, bound_by="shared", binding="shared",
                 bound_tflops=80, model_tflops=75, **arch),
        ModelRow(gpu="H200", kernel="second_sm80", op="attention", clock_mhz=1965, bound_by="tensor", binding="latency",
                 bound_tflops=600, model_tflops=400, measured_tflops=350, **arch),
        ModelRow(gpu="V100", kernel="third_sm70", op="attention", clock_mhz=1530, reason="no nvdisasm", **arch),
    ]  # fmt: skip
    return [row.model_dump() for row in rows]


def run_of(records: list[Record], folder: Path) -> Run:
    """The records as figures read them, through Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([r.model_dump() for r in records]).to_parquet(folder / "records.parquet")
    pd.DataFrame(samples_of(records)).to_parquet(folder / "samples.parquet")
    curves().to_parquet(folder / "curves.parquet")
    pd.DataFrame(model_rows()).to_csv(folder / "model.csv", index=False)
    trainings(folder)
    device = "cuda" if records[0].device_name == "Synthetic GPU" else "cpu"
    planned = {f"listops-{method}-seed0": planned_training(method) for method in ("dense_flash", "sat")}
    return Run("synthetic", device, folder, LABELS, read_records(folder / "records.parquet"), planned)
