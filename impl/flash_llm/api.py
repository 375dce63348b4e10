"""Flash-LLM's product of a sparse weight and a skinny dense matrix, as a PyTorch op.

`torch.ops.voltabench.flash_llm_spmm` runs the kernel on CUDA tensors and the reference on CPU tensors; it
works under autocast, torch.compile and CUDA graphs. It has no gradient: weights are compressed for inference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm import reference
from impl.flash_llm.formats import TiledCSL
from impl.flash_llm.kernels.tiled_csl import Plan, choose_plan, multiply

_INT32_MAX = torch.iinfo(torch.int32).max


def flash_llm_spmm(weight: TiledCSL, x: Tensor, split_k: int | None = None) -> Tensor:
    """Y [m, n] = W [m, k] X [k, n], float16, accumulated in float32 (Xia et al., PVLDB 17(2), 2023).

    weight: W in Tiled-CSL. x: [k, n] float16 on the weight's device; rows may be strided, a matrix whose
    columns are not adjacent is copied first. split_k: into how many parts k is cut, chosen from the shapes and
    the number of SMs when left out; the result is the same on every run.

    Raises TypeError for another dtype, ValueError for shapes, devices or a split_k that do not fit, and
    NotImplementedError on a GPU older than sm_80.
    """
    m, k = weight.shape
    if x.dim() != 2 or x.shape[0] != k or x.shape[1] < 1:
        raise ValueError(f"x must be [{k}, n] for a weight of shape [{m}, {k}], not {list(x.shape)}")
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device} and the weight on {weight.device}")
    if max(m, k, x.shape[1]) > _INT32_MAX:
        raise ValueError(f"m={m}, k={k} and n={x.shape[1]} must be below 2^31")
    return _spmm(weight.entries, weight.offsets, x, m, split_k)


def plan_for(m: int, x: Tensor, split_k: int | None = None) -> Plan:
    """How the product with x [k, n] is cut on x's device, `split_k` (None: chosen) included; on a CPU k is whole.

    Raises as `flash_llm_spmm` does for a split_k that does not fit and for a GPU older than sm_80.
    """
    k, n = x.shape
    if not x.is_cuda:
        return choose_plan(m, n, k, sm_count=1, split_k=1 if split_k is None else split_k)
    properties = torch.cuda.get_device_properties(x.device)
    if properties.major < 8:
        raise NotImplementedError(f"the Tiled-CSL kernel needs sm_80 or newer; {properties.name} is older")
    return choose_plan(m, n, k, properties.multi_processor_count, split_k)


@torch.library.custom_op("voltabench::flash_llm_spmm", mutates_args=(), device_types="cuda")
def _spmm(entries: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int | None) -> Tensor:
    from impl.cuda.launch import launch

    _check_dtype(x)
    plan = plan_for(m, x, split_k)
    return multiply(entries, offsets, x if x.stride(1) == 1 else x.contiguous(), m, plan, launch)


@_spmm.register_kernel("cpu")
def _(entries: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int | None) -> Tensor:
    _check_dtype(x)
    return reference.spmm(entries, offsets, x, m, plan_for(m, x, split_k).split_k)


@_spmm.register_fake
def _(entries: Tensor, offsets: Tensor, x: Tensor, m: int, split_k: int | None) -> Tensor:
    _check_dtype(x)
    return x.new_empty(m, x.shape[1])


_spmm.register_autocast("cuda", torch.float16)
_spmm.register_autocast("cpu", torch.float16)


def _check_dtype(x: Tensor) -> None:
    if x.dtype != torch.float16:
        raise TypeError(f"x must be float16, not {x.dtype}")
