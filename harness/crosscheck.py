"""Our timer beside two others on the same calls: `python -m harness.crosscheck` prints a table in Markdown.

Cold times beside `triton.testing.do_bench` and, where its package is installed, nvbench (`pip install cuda-bench`);
hot times beside `triton.testing.do_bench_cudagraph`. All take turns, so that the card's state is shared; each number
is the median over the turns of that timer's median.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.config import Measure
from harness.lazy import lazy_import
from harness.machine import find_target
from harness.nvml import CardState
from harness.timers import CudaTimer, flush_buffer
from harness.timing import time_interleaved

torch = lazy_import("torch")

TURNS = 4
REPEAT_MS = 20  # of do_bench: bursts as short as ours, for a longer one runs into the power cap
NVBENCH_CLOCK_SHARE = 0.1  # of the peak clock, below which nvbench discards a sample: not at the power cap
Call = Callable[[], object]


def calls() -> dict[str, Call]:
    """Large GEMMs, a kernel of about 10 us, an SDPA call.

    All on zeros, and one GEMM in float32: large products of random float16 numbers run at the power cap, where bursts
    of different lengths have clocks up to 10 % apart, and that is what the timers would disagree about.
    """

    def zeros(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    a, b, c = zeros(8192, 8192), zeros(8192, 8192), zeros(8192, 8192)
    d, e, f = (zeros(4096, 4096, dtype=torch.float32) for _ in range(3))
    x, y, z = zeros(2**22), zeros(2**22), zeros(2**22)
    q, k, v = zeros(4, 16, 4096, 128), zeros(4, 16, 4096, 128), zeros(4, 16, 4096, 128)

    def sdpa() -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return {
        "GEMM 8192 x 8192 x 8192, float16": lambda: torch.mm(a, b, out=c),
        "GEMM 4096 x 4096 x 4096, float32": lambda: torch.mm(d, e, out=f),
        "add of 4 Mi elements": lambda: torch.add(x, y, out=z),
        "SDPA flash B4 H16 S4096 D128": sdpa,
    }


def ours(call: Call) -> dict[str, float]:
    """Median cold and hot time, s."""
    timer = CudaTimer(lambda: {"out": call()}, flush_buffer("cuda"), torch.cuda.graph_pool_handle())

    def fail(name: str, error: Exception) -> None:
        raise error

    timings = time_interleaved({"call": timer}, Measure(), CardState, lambda name: None, fail, random.Random(0))["call"]
    return {"cold": statistics.median(timings.cold.accepted), "hot": statistics.median(timings.hot.accepted)}


def triton_do_bench(call: Call) -> dict[str, float]:
    from triton import testing

    return {
        "do_bench": testing.do_bench(call, warmup=5, rep=REPEAT_MS, return_mode="median") / 1e3,
        "do_bench_cudagraph": testing.do_bench_cudagraph(call, rep=REPEAT_MS, return_mode="median") / 1e3,
    }


def nvbench(named: dict[str, Call]) -> dict[str, float]:
    """Median cold time of each call, s. To be run once per process: nvbench keeps its benchmarks."""
    import cuda.bench
    from cuda.bench.results import BenchmarkResult

    for name, call in named.items():

        def benchmark(state: cuda.bench.State, call: Call = call) -> None:
            stream = torch.cuda.ExternalStream(state.get_stream().addressof())

            def launch(_: cuda.bench.Launch) -> None:
                with torch.cuda.stream(stream):
                    call()

            for _ in range(3):  # allocate now: nvbench launches behind a kernel that blocks the device
                launch(None)
            stream.synchronize()
            state.exec(launch, batched=False)

        benchmark.__name__ = name
        cuda.bench.register(benchmark).set_name(name).set_throttle_threshold(NVBENCH_CLOCK_SHARE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        cuda.bench.run_all_benchmarks(["crosscheck", "--jsonbin", str(path), "--quiet"])
        centers = BenchmarkResult.from_json(path).centers(statistics.median)
    return {name: next(iter(centers[name].values())) for name in named}


def main() -> None:
    """Print the table. Raises MachineError without a GPU."""
    target = find_target("cuda")
    torch.cuda.set_stream(torch.cuda.Stream())
    named = calls()
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in named}
    by_nvbench: dict[str, float] = {}
    for turn in range(TURNS):
        for name, call in named.items():
            turns[name].append({**ours(call), **triton_do_bench(call)})
        if turn == TURNS // 2 - 1 and importlib.util.find_spec("cuda.bench"):  # once, amid the others
            try:
                by_nvbench = nvbench(named)
            except Exception as error:  # the other columns are worth having
                print(f"nvbench did not run: {type(error).__name__}: {error}\n")
    print(f"{target.name}, torch {torch.__version__}; times in us, ratios are ours / theirs\n")
    print("| call | ours cold | do_bench | ratio | nvbench | ratio | ours hot | do_bench_cudagraph | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, rows in turns.items():
        median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        cells = [name, _us(median["cold"])]
        for theirs in (median["do_bench"], by_nvbench.get(name)):
            cells += _compared(median["cold"], theirs)
        cells += [_us(median["hot"]), *_compared(median["hot"], median["do_bench_cudagraph"])]
        print(f"| {' | '.join(cells)} |")


def _compared(own: float, theirs: float | None) -> list[str]:
    return ["-", "-"] if theirs is None else [_us(theirs), f"{own / theirs:.3f}"]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


if __name__ == "__main__":
    main()
