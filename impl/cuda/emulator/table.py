"""What the kernels do at a small shape, counted: `python -m impl.cuda.emulator.table > counts.csv`.

One row per kernel, shape, instruction and bytes per lane, with the columns of `Count`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd
import torch

from impl.cuda.emulator.run import count
from impl.flash_llm.formats import TiledCSL
from impl.flash_llm.kernels import Plan, tiled_csl
from impl.spark_attention.kernels.backward import attention_backward
from impl.spark_attention.kernels.forward import attention_forward

Call = Callable[[Callable[..., None]], object]  # launches through the function it is given


def calls() -> Iterator[tuple[str, Call]]:
    """Shape in words, and the call of the kernels at it."""
    for head_dim in (64, 128):
        q, k, v = (torch.randn(1, 1, 256, head_dim).half() for _ in range(3))
        for arch, accumulate in (("sm_70", "fp32"), ("sm_70", "fp16"), ("sm_80", "fp32")):
            options = {"causal": False, "softmax_scale": head_dim**-0.5, "accumulate": accumulate, "kernel_arch": arch}
            yield f"B=1 H=1 S=256 D={head_dim}", partial(attention_forward, q, k, v, **options)
        for arch in ("sm_70", "sm_80"):
            options = {"causal": False, "softmax_scale": head_dim**-0.5, "arch": arch}
            operands = (q, q, k, v, torch.zeros_like(q), torch.zeros(q.shape[:3]))
            yield f"B=1 H=1 S=256 D={head_dim}", _launch_by_name(partial(attention_backward, *operands, **options))
    w = torch.randn(256, 512).half().masked_fill(torch.rand(256, 512) < 0.8, 0)
    weight = TiledCSL.from_dense(w)
    for n, kernel in (*tiled_csl.SPMM.items(), *tiled_csl.SPMM_SM70.items()):
        operands = (weight.data, weight.offsets, torch.randn(512, n).half(), 256)
        plan = Plan(kernel, tile_m=128, tile_n=n, split_k=2)
        yield f"M=256 K=512 N={n} split K=2, 80 % zeros", partial(plan.multiply, *operands)


def _launch_by_name(call: Callable[..., object]) -> Call:
    return lambda launch: call(launch=launch)


def table() -> pd.DataFrame:
    """The counts of all `calls`, with the same random operands every time."""
    rows = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for shape, call in calls():

            def launch(kernel, *arguments, shape=shape):
                rows.extend({"kernel": kernel.name, "shape": shape, **vars(c)} for c in count(kernel, *arguments))

            call(launch)
    by = ["kernel", "shape", "instruction", "bytes"]
    return pd.DataFrame(rows).groupby(by, sort=False).sum(numeric_only=True).reset_index()


if __name__ == "__main__":
    table().to_csv(sys.stdout, index=False)
