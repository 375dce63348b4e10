"""Flash-LLM's product of a sparse weight and a skinny dense matrix, and the weight's expansion, as PyTorch ops.

`torch.ops.voltabench.flash_llm_spmm` and `flash_llm_expand` run kernels on CUDA tensors and plain PyTorch on CPU
tensors; they work under autocast, torch.compile and CUDA graphs. They have no gradient: weights are compressed for
inference, and `spmm` refuses an x that asks for one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.flash_llm import reference
from impl.flash_llm.formats import FORMATS, SparseMatrix
from impl.flash_llm.kernels import Device, Plan, Problem, choose_plan
from impl.flash_llm.kernels.expand import expand as expand_by
from impl.flash_llm.kernels.plan import aligned_rows

_INT32_MAX = torch.iinfo(torch.int32).max


def spmm(weight: SparseMatrix, x: Tensor, split_k: int | None = None) -> Tensor:
    """Y [m, n] = W [m, k] X [k, n], float16, accumulated in float32 (Xia et al., PVLDB 17(2), 2023).

    weight: W in one of FORMATS. x: [k, n] float16 on the weight's device; rows may be strided, a matrix
    whose columns are not adjacent is copied first. split_k: into how many parts k is cut, chosen from the shapes and
    the number of SMs when left out; the result is the same on every run.

    Raises TypeError for another dtype or a dense weight, ValueError for shapes, devices or a split_k that do not fit,
    and NotImplementedError on a GPU that no kernel of the format is for, and where x asks for a gradient.
    """
    if not isinstance(weight, SparseMatrix):
        raise TypeError(f"weight must be compressed, as by Bitmap.from_dense(w), not a {type(weight).__name__}")
    m, k = weight.shape
    refuse_gradient(x)
    if x.dim() != 2 or x.shape[0] != k or x.shape[1] < 1:
        raise ValueError(f"x must be [{k}, n] for a weight of shape [{m}, {k}], not {list(x.shape)}")
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device} and the weight on {weight.device}")
    if max(m, k, x.shape[1]) > _INT32_MAX:
        raise ValueError(f"m={m}, k={k} and n={x.shape[1]} must be below 2^31")
    return _spmm(weight.data, weight.offsets, x, m, weight.name, weight.longest, split_k)


def refuse_gradient(x: Tensor) -> None:
    """Raises NotImplementedError where x asks for a gradient."""
    if x.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("a compressed weight has no gradient; use torch.no_grad(), or x.detach()")


def expand(weight: SparseMatrix) -> Tensor:
    """W [m, k] float16, dense, on the weight's device: by a kernel on a GPU."""
    return _expand(weight.data, weight.offsets, *weight.shape, weight.name, weight.longest)


def plan_for(weight: SparseMatrix, x: Tensor, split_k: int | None = None) -> Plan:
    """How the product with x [k, n] is cut on x's device, `split_k` (None: chosen) included.

    Raises as `spmm` does for a split_k that does not fit and for a GPU that is too old.
    """
    return _plan(weight.data, weight.offsets, x, weight.shape[0], weight.name, weight.longest, split_k)


def _plan(data: Tensor, offsets: Tensor, x: Tensor, m: int, kind: str, longest: int, split_k: int | None) -> Plan:
    k, n = x.shape
    problem = Problem(m, n, k, data.nbytes + offsets.nbytes, longest)
    return choose_plan(kind, problem, Device.of(x.device), split_k)


@torch.library.custom_op("voltabench::flash_llm_spmm", mutates_args=(), device_types="cuda")
def _spmm(data: Tensor, offsets: Tensor, x: Tensor, m: int, kind: str, longest: int, split_k: int | None) -> Tensor:
    from impl.cuda.launch import launch

    _check_dtype(x)
    plan = _plan(data, offsets, x, m, kind, longest, split_k)
    return plan.multiply(data, offsets, x if x.stride(1) == 1 else aligned_rows(x), m, launch)


@_spmm.register_kernel("cpu")
def _(data: Tensor, offsets: Tensor, x: Tensor, m: int, kind: str, longest: int, split_k: int | None) -> Tensor:
    _check_dtype(x)
    plan = _plan(data, offsets, x, m, kind, longest, split_k)
    return reference.spmm(FORMATS[kind], data, offsets, x, m, plan.split_k)


@_spmm.register_fake
def _(data: Tensor, offsets: Tensor, x: Tensor, m: int, kind: str, longest: int, split_k: int | None) -> Tensor:
    _check_dtype(x)
    return x.new_empty(m, x.shape[1])


@torch.library.custom_op("voltabench::flash_llm_expand", mutates_args=(), device_types="cuda")
def _expand(data: Tensor, offsets: Tensor, m: int, k: int, kind: str, longest: int) -> Tensor:
    from impl.cuda.launch import launch

    return expand_by(kind, data, offsets, (m, k), longest, launch)


@_expand.register_kernel("cpu")
def _(data: Tensor, offsets: Tensor, m: int, k: int, kind: str, longest: int) -> Tensor:
    return FORMATS[kind].expand_all(data, offsets, (m, k))


@_expand.register_fake
def _(data: Tensor, offsets: Tensor, m: int, k: int, kind: str, longest: int) -> Tensor:
    return data.new_empty(m, k, dtype=torch.float16)


_spmm.register_autocast("cuda", torch.float16)
_spmm.register_autocast("cpu", torch.float16)


def _check_dtype(x: Tensor) -> None:
    if x.dtype != torch.float16:
        raise TypeError(f"x must be float16, not {x.dtype}")
