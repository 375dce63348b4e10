"""The record: the one row that a (case, contender) always leaves.

The fields below are the schema and, through `description`, the data dictionary (`docs/records.md` is made
from them). Times are seconds, energies joules, sizes bytes, clocks MHz, temperatures degrees Celsius.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
NO_ENERGY_CELL = "not an energy cell of the config"  # energy_quality where none was asked for

Status = Literal["ok", "unsupported", "unavailable", "out_of_memory", "incorrect", "unstable", "crashed", "timeout"]


def _column(description: str, default: Any = None) -> Any:
    return Field(default, description=description)


class Sample(BaseModel):
    """One timed sample and the state of the card around its round."""

    model_config = ConfigDict(extra="forbid")

    metric: Literal["cold", "hot"] = _column("cold: L2 flushed before; hot: the same buffers back to back")
    round: int = _column("interleaved round the sample belongs to", 0)
    seconds: float = _column("duration of one call, s", 0.0)
    accepted: bool = _column("False when the card was slowed by heat or hardware during its round", True)
    sm_clock_mhz: float | None = _column("SM clock around the round, MHz")
    memory_clock_mhz: float | None = _column("memory clock around the round, MHz")
    temperature_c: float | None = _column("GPU temperature around the round, degrees C")
    power_w: float | None = _column("board power around the round, W")
    throttle: str | None = _column("throttle reasons around the round, joined by +, or none")


class CurvePoint(BaseModel):
    """The loss of one step of a training; a training that failed has one row, without a loss."""

    model_config = ConfigDict(extra="forbid")

    contender: str = _column("name of the contender of op training_step whose attention the model has", "")
    role: Literal["ours", "baseline", "control"] = _column("ours, baseline or control", "baseline")
    baseline: str = _column("contender whose spread over the seeds the others are held against", "")
    seed: int = _column("seed of the weights and of the text's places", 0)
    step: int | None = _column("steps before it")
    loss: float | None = _column("mean loss of the step's tokens, nats")
    status: Status = _column("as of a record", "ok")
    reason: str | None = _column("why the status is not ok")
    device_name: str | None = _column("GPU or CPU model")
    commit: str | None = _column("git commit, with -dirty when the tree had changes")
    code_hash: str | None = _column("hash of the contender's sources")


class Record(BaseModel):
    """One (case, contender). Every column is always present; null means not applicable or not known."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = _column("version of this schema", SCHEMA_VERSION)
    run: str = _column("name of the run", "")
    experiment: str = _column("group of panels that answers one question", "")
    panel: str = _column("group of cases drawn together", "")
    case_id: str = _column("stable id of the case, a function of its parameters only", "")
    op: str = _column(
        "attention | block_sparse_attention | spmm | training_step | sparse_training_step | decode_step", ""
    )
    direction: Literal["forward", "backward"] | None = _column("forward, backward, or null where it has no meaning")
    contender: str = _column("name of the contender", "")
    role: Literal["ours", "baseline", "control"] = _column("ours, baseline or control", "baseline")
    status: Status = _column("closed list; anything but ok has a reason", "ok")
    reason: str | None = _column("why the status is not ok, or why times are null")
    note: str | None = _column("what a reader must know: the same kernel as another contender, a stand-in")
    backend: Literal["reference", "emulated", "kernel", "library"] | None = _column(
        "what ran: our plain-torch reference, our kernel emulated on a CPU, our kernel on a GPU, or a library"
    )
    kernel_arch: str | None = _column("architecture the kernel source was written for")
    built_arch: str | None = _column("architecture it was compiled for; cpu when emulated")
    device_name: str | None = _column("GPU or CPU model")
    dtype: str | None = _column("element type of the inputs; of a training step, what autocast computes in")
    seed: int | None = _column("seed of the inputs")
    variant: str | None = _column("what distinguishes a contender within its family")
    tuning: str | None = _column("algorithm, split-K, tile and the like that were chosen, as JSON")
    pattern: str | None = _column("distribution of the kept elements or blocks")
    batch: int | None = _column("batch size")
    num_heads: int | None = _column("query heads")
    num_heads_kv: int | None = _column("key and value heads")
    seqlen_q: int | None = _column("query length")
    seqlen_k: int | None = _column("key length")
    head_dim: int | None = _column("head dimension")
    causal: bool | None = _column("causal mask, bottom-right aligned")
    softmax: str | None = _column("renormalised | pruned_as_zero (block-sparse attention)")
    m: int | None = _column("rows of the sparse matrix")
    n: int | None = _column("columns of the activations")
    k: int | None = _column("columns of the sparse matrix")
    sparsity: float | None = _column("share of zeros")
    tile_density_max: float | None = _column("share of non-zeros in the densest tile of 128 x 64 of the sparse matrix")
    tile_density_variance: float | None = _column("variance of that share over the tiles")
    block: int | None = _column("block side of a block pattern")
    density: float | None = _column("share of blocks kept, counted")
    model: str | None = _column("name of the model (steps of training and decoding)")
    layers: int | None = _column("layers of the model")
    parameters: int | None = _column("weights of the model")
    tokens: int | None = _column("tokens of one call, over the batch")
    prompt: int | None = _column("tokens of the prompt (decoding step)")
    new_tokens: int | None = _column("tokens after the prompt; the step is that of the last one, the longest")
    setup_s: float | None = _column("conversion, compilation and planning, s; never part of a latency")
    conversion_s: float | None = _column("converting the weight to the contender's format, s; part of setup_s")
    verify_s: float | None = _column("time of both passes of the gate, s")
    window_s: float | None = _column("measuring window: warm-up, flush, samples, settling, energy, s")
    cold_min_s: float | None = _column("fastest accepted cold sample, s")
    cold_q1_s: float | None = _column("first quartile of the cold samples, s")
    cold_median_s: float | None = _column("median of the cold samples, s: the quoted time")
    cold_q3_s: float | None = _column("third quartile of the cold samples, s")
    hot_min_s: float | None = _column("fastest accepted hot sample, s")
    hot_median_s: float | None = _column("median of the hot samples, s")
    hot_method: str | None = _column(
        "graph: CUDA-graph replays; backlog: launches behind a spin kernel; loop: CPU loop"
    )
    samples: int | None = _column("accepted cold samples")
    samples_rejected: int | None = _column("cold samples discarded because of heat or hardware slowdown")
    stop_reason: str | None = _column("why sampling stopped: converged | max_time | max_samples")
    baseline: str | None = _column("contender that `speedup` is taken against")
    speedup: float | None = _column("median over rounds of baseline time / own time (cold)")
    speedup_low: float | None = _column("lower end of its 95 % bootstrap interval")
    speedup_high: float | None = _column("upper end of its 95 % bootstrap interval")
    flops: float | None = _column("useful floating-point operations of one call")
    tflops: float | None = _column("flops / cold_median_s / 1e12; dense-equivalent for spmm")
    bytes_floor: int | None = _column("fewest bytes one call must move for this contender's format")
    gbps: float | None = _column("bytes_floor / cold_median_s / 1e9")
    tokens_per_gpu_s: float | None = _column(
        "tokens / cold_median_s, on one GPU; of a decoding step without the prompt"
    )
    parts: str | None = _column("share of hot_median_s by part of the call, each timed by itself, as JSON")
    bandwidth_fraction: float | None = _column("gbps / the bandwidth the copy control reached in this run")
    peak_bytes: int | None = _column("peak device memory of one call above its inputs; null on a CPU")
    format_bytes: int | None = _column("size of the converted operand, where there is one")
    resident_bytes: int | None = _column("weights and key-value cache that stay in memory (decoding step)")
    error_max: float | None = _column("largest absolute error over the outputs, against float64")
    error_ratio: float | None = _column("largest over outputs of error / allowance at factor 1")
    error_limit: float | None = _column("the factor that output is allowed: 2 outputs, 3 gradients")
    energy_j: float | None = _column("energy of one call, gross, J")
    energy_net_j: float | None = _column("energy of one call above idle, J")
    energy_quality: str | None = _column("good | fair | poor, or why there is no energy")
    energy_source: str | None = _column("counter | power_integral")
    energy_window_s: float | None = _column("length of one energy window, s")
    energy_period_s: float | None = _column("update period of the energy counter, or of power, as probed, s")
    energy_temperature_min_c: float | None = _column("lowest GPU temperature in the energy windows, degrees C")
    energy_temperature_max_c: float | None = _column("highest GPU temperature in the energy windows, degrees C")
    flops_per_j: float | None = _column("flops / energy_j")
    edp_js: float | None = _column("energy-delay product: energy_j times the time of one call in the window, J s")
    power_w: float | None = _column("mean board power during the energy window, or around the timed rounds, W")
    idle_power_w: float | None = _column("idle board power subtracted, W")
    sm_clock_mhz: float | None = _column("median SM clock around the rounds, MHz")
    temperature_c: float | None = _column("highest temperature around the rounds, degrees C")
    throttled: str | None = _column("throttle reasons seen, joined by +; the power cap is only flagged")
    commit: str | None = _column("git commit, with -dirty when the tree had changes")
    code_hash: str | None = _column("hash of the contender's sources")
    kernel_hash: str | None = _column("hash of the compiled kernel's source and options")
    gpu_id: str | None = _column("hash of the GPU's UUID")
    driver: str | None = _column("driver version")
    libraries: str | None = _column("versions of the libraries loaded, as JSON")
    config_hash: str | None = _column("hash of the run's resolved config")
    started_at: str | None = _column("UTC start of the measurement, ISO 8601")

    def key(self) -> tuple[str, str, str, str]:
        """What makes a record unique within a run."""
        return (self.experiment, self.panel, self.case_id, self.contender)
