"""The attention kernels that the throughput model takes: those for aligned fp16 rows of sm_70 and sm_80."""

from __future__ import annotations

from impl.cuda.build import Kernel
from impl.cuda.model.modelled import Modelled
from impl.spark_attention.kernels import sm70, sm80

_DIMS = (64, 128)
_FLOPS = 2  # of a multiply-add


def _modelled(direction: str, padded_dim: int, kernel: Kernel, products: int, scores: int) -> Modelled:
    """products: matrix products of a pass; scores: elements of q k^T of a warp in it."""
    case = {"op": "attention", "direction": direction, "head_dim": padded_dim, "causal": False, "dtype": "float16"}
    return Modelled(case, kernel, _FLOPS * products * scores * padded_dim)


def _sm70_forward(padded_dim: int, accumulate_fp16: bool) -> Modelled:
    kernel = sm70.forward_kernel(padded_dim, True, accumulate_fp16)
    return _modelled("forward", padded_dim, kernel, 2, sm70.BLOCK_M // 4 * dict(kernel.macros)["BLOCK_N"])


def _sm70_backward(gradient: str, padded_dim: int, products: int) -> Modelled:
    macros = dict((kernel := sm70.backward_kernel(gradient, padded_dim, True)).macros)
    return _modelled("backward", padded_dim, kernel, products, macros["WARP_ROWS"] * macros["BLOCK_N"])


def _sm80_forward(padded_dim: int) -> Modelled:
    kernel = sm80.forward_kernel(padded_dim, True, False)
    return _modelled("forward", padded_dim, kernel, 2, sm80.BLOCK_M // 4 * dict(kernel.macros)["BLOCK_N"])


def _sm80_backward(padded_dim: int) -> Modelled:
    kernel = sm80.backward_kernel(padded_dim, True, False)
    scores = sm80.BACKWARD_ROWS * sm80.BACKWARD_KEYS // (kernel.threads // 32)
    return _modelled("backward", padded_dim, kernel, 5, scores)


MODELLED = (
    *(_sm70_forward(dim, accumulate_fp16) for accumulate_fp16 in (False, True) for dim in _DIMS),
    *(_sm70_backward(gradient, dim, products) for gradient, products in (("dq", 3), ("dkdv", 4)) for dim in _DIMS),
    *(_sm80_forward(dim) for dim in _DIMS),
    *(_sm80_backward(dim) for dim in _DIMS),
)
