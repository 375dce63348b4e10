"""The attention kernels that the throughput model takes: those for aligned fp16 rows of sm_70 and sm_80."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impl.cuda.build import Kernel
from impl.cuda.model.modelled import Modelled
from impl.spark_attention.kernels import sm70, sm80

_DIMS = (64, 128)
_FLOPS = 2  # of a multiply-add


def _modelled(
    direction: str, padded_dim: int, kernel: Kernel, products: int, rows: int, steps: int, *, over_keys: bool = True
) -> Modelled:
    """products: matrix products of a pass. A block has `rows` queries and walks over the keys, `steps` at a time; or,
    not over_keys, so many keys, and walks over the queries of their group of heads."""

    def grid(case: Mapping[str, Any]) -> tuple[int, int]:
        heads, group = case["num_heads"], case["num_heads"] // case["num_heads_kv"]
        if over_keys:
            return case["batch"] * heads * -(-case["seqlen_q"] // rows), -(-case["seqlen_k"] // steps)
        return case["batch"] * heads // group * -(-case["seqlen_k"] // rows), -(-case["seqlen_q"] // steps) * group

    scores = rows * steps // (kernel.threads // 32)
    case = {"op": "attention", "direction": direction, "head_dim": padded_dim, "causal": False, "dtype": "float16"}
    return Modelled(case, kernel, _FLOPS * products * scores * padded_dim, grid)


def _sm70_forward(padded_dim: int, accumulate_fp16: bool) -> Modelled:
    kernel = sm70.forward_kernel(padded_dim, True, accumulate_fp16)
    return _modelled("forward", padded_dim, kernel, 2, sm70.BLOCK_M, dict(kernel.macros)["BLOCK_N"])


def _sm70_backward(gradient: str, padded_dim: int, products: int) -> Modelled:
    kernel = sm70.backward_kernel(gradient, padded_dim, True)
    rows, steps = sm70.backward_rows(padded_dim), dict(kernel.macros)["BLOCK_N"]
    return _modelled("backward", padded_dim, kernel, products, rows, steps, over_keys=gradient == "dq")


def _sm80_forward(padded_dim: int) -> Modelled:
    kernel = sm80.forward_kernel(padded_dim, True, False)
    return _modelled("forward", padded_dim, kernel, 2, sm80.BLOCK_M, dict(kernel.macros)["BLOCK_N"])


def _sm80_backward(padded_dim: int) -> Modelled:
    kernel = sm80.backward_kernel(padded_dim, True, False)
    return _modelled("backward", padded_dim, kernel, 5, sm80.BACKWARD_KEYS, sm80.BACKWARD_ROWS, over_keys=False)


MODELLED = (
    *(_sm70_forward(dim, accumulate_fp16) for accumulate_fp16 in (False, True) for dim in _DIMS),
    *(_sm70_backward(gradient, dim, products) for gradient, products in (("dq", 3), ("dkdv", 4)) for dim in _DIMS),
    *(_sm80_forward(dim) for dim in _DIMS),
    *(_sm80_backward(dim) for dim in _DIMS),
)
