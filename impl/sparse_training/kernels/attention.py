"""Block-sparse attention by kernels: which tensors they take, their launches and arguments (arguments.cuh)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Launch, strides
from impl.cuda.tensor_map import TensorMap, loadable
from impl.sparse_training.kernels import sm70, sm80, sm90
from impl.sparse_training.reference import PRUNED_AS_ZERO

_SOURCES = {"sm_70": sm70, "sm_80": sm80, "sm_90a": sm90}
_L2_SHARE = 16 * 2**20  # bytes of the tensors that are read again and again, to be found in L2
_MOST_HEADS_TOGETHER = 16


def source_arch(q: Tensor, block: int) -> str:
    """The architecture whose kernels serve tensors like `q` best: on a CPU, which emulates any, "sm_80".

    Those for Hopper lack blocks of 32, and would compute a head_dim of 32 as 64.
    """
    capability = torch.cuda.get_device_capability(q.device) if q.is_cuda else (8, 0)
    if capability == (9, 0) and block in sm90.BLOCKS and q.shape[-1] > sm80.PADDED_DIMS[0]:
        return "sm_90a"
    return "sm_80" if capability >= (8, 0) else "sm_70"


def refusal(q: Tensor, block: int) -> str | None:
    """Why no kernel takes tensors like `q` in blocks of `block`, or None."""
    if q.dtype == torch.bfloat16 and source_arch(q, block) == "sm_70":
        return "bfloat16 needs compute capability 8.0 or newer; the Volta kernels take float16"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernels take float16 and bfloat16, not {q.dtype}"
    if q.shape[-1] > sm80.PADDED_DIMS[-1]:
        return f"the kernels take a head_dim up to {sm80.PADDED_DIMS[-1]}, not {q.shape[-1]}"
    return None if block in sm80.BLOCKS else f"the kernels take blocks of {sm80.BLOCKS}, not {block}"


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    lengths: Tensor | None,
    *,
    block: int,
    causal: bool,
    softmax: str,
    launch: Launch,
    arch: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`reference.forward` by the kernel written for `arch`, else `source_arch`, for tensors without `refusal`.

    `launch` runs it (impl.cuda.launch.launch, or the emulator's). "sm_90a" has blocks of 64 and 128, "sm_70" no
    bfloat16. Inputs whose rows do not start at multiples of 16 bytes are copied.
    """
    head_dim, arch = q.shape[-1], arch or source_arch(q, block)
    q, k, v = map(_loadable, (q, k, v))
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    if q.numel():
        inputs, further = _inputs(arch, q, k, v)
        options = [np.int32(softmax == PRUNED_AS_ZERO), *_sizes(q, k, rows, block, causal, head_dim)]
        arguments = [*inputs, out, lse, rows, _pointer(lengths), *further, *options]
        kernel = _kernel(arch, "forward", q, block)
        launch(kernel, _grid(arch, kernel, q, block), arguments)
    return out[..., :head_dim].contiguous(), lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rows: Tensor,
    columns: Tensor,
    lengths: Tensor | None,
    *,
    block: int,
    causal: bool,
    launch: Launch,
    arch: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.backward` by two kernels, the same bit for bit from run to run. Otherwise as `forward`."""
    head_dim, arch = q.shape[-1], arch or source_arch(q, block)
    dout, q, k, v, out = map(_loadable, (dout, q, k, v, out))
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    statistics = lse.new_empty(*q.shape[:2], -(-q.shape[2] // block) * block, 2)
    if q.numel():
        inputs, further = _inputs(arch, q, k, v, dout)
        saved_out = TensorMap(out, sm90.TILE_ROWS) if arch == "sm_90a" else out.contiguous()
        further = [_pointer(lengths), *further, *_sizes(q, k, rows, block, causal, head_dim)]
        kernel = _kernel(arch, "backward_dq", q, block)
        launch(kernel, _grid(arch, kernel, q, block), [*inputs, saved_out, lse, statistics, dq, rows, *further])
        kernel = _kernel(arch, "backward_dkdv", q, block)
        launch(kernel, _grid(arch, kernel, k, block), [*inputs, statistics, dk, dv, columns, *further])
    dq, dk, dv = (gradient[..., :head_dim].contiguous() for gradient in (dq, dk, dv))
    return dq, dk, dv


def _loadable(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy with zeros up to a multiple of 8 columns, whose rows start at multiples of 16 bytes."""
    if tensor.shape[-1] % 8:
        return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8))
    return tensor if loadable(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def _inputs(arch: str, *tensors: Tensor) -> tuple[list[Tensor | TensorMap], list[Tensor | np.int64]]:
    """What a kernel takes for these, and what follows the lengths: pointers, and strides; or maps for the copy engine,
    and a counter of the works that have been taken, which each kernel leaves at zero."""
    if arch == "sm_90a":
        tickets = torch.zeros(1, dtype=torch.int32, device=tensors[0].device)
        return [TensorMap(tensor, sm90.TILE_ROWS) for tensor in tensors], [tickets]
    return list(tensors), strides(*tensors)


def _kernel(arch: str, what: str, q: Tensor, block: int) -> Kernel:
    source = _SOURCES[arch]
    padded_dim = next(dim for dim in source.PADDED_DIMS if q.shape[-1] <= dim)
    return source.kernel(what, block, padded_dim, q.dtype == torch.bfloat16)


def _grid(arch: str, kernel: Kernel, tensor: Tensor, block: int) -> tuple[int, int, int]:
    batch, heads, seqlen, _ = tensor.shape
    works = batch * heads * -(-seqlen // block) * _SOURCES[arch].parts(block)
    return sm90.resident_blocks(kernel, works, tensor.device) if arch == "sm_90a" else works, 1, 1


def _sizes(q: Tensor, k: Tensor, rows: Tensor, block: int, causal: bool, head_dim: int) -> list[np.generic]:
    """SIZES of arguments.cuh; `head_dim`, which the scale is of, may be less than q's."""
    batch, heads, seqlen, columns = q.shape
    bytes_of_head = 2 * seqlen * columns * q.itemsize
    together = max(1, min(_MOST_HEADS_TOGETHER, _L2_SHARE // bytes_of_head))
    sizes = (seqlen, columns, batch, heads, heads // k.shape[1], len(rows), -(-seqlen // block), together, causal)
    return [*map(np.int32, sizes), np.float32(head_dim**-0.5)]


def _pointer(tensor: Tensor | None) -> Tensor | np.int64:
    return np.int64(0) if tensor is None else tensor
