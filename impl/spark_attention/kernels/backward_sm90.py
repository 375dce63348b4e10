"""The backward on Hopper: which tensors its kernels take, their scratch, launch geometry and arguments."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Step, rows_aligned, strides
from impl.cuda.tensor_map import TensorMap, loadable
from impl.spark_attention.kernels import sm90


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the copy engine can load the inputs, and 16-byte stores can write the gradients; if not, sm80 can."""
    return q.shape[-1] % 8 == 0 and all(map(loadable, (q, k, v)))


def backward_steps(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
) -> list[Step]:
    """What to launch, in order, to fill the contiguous dq, dk, dv. q, k and v must be ones that `takes` accepts.

    Scratch is 4 bytes for each element of q, head_dim rounded up to 64 or 128.
    """
    if not loadable(dout):  # as the gradient of a sum, which is one number expanded
        dout = dout.contiguous()
    batch, heads, seqlen_q, head_dim = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    padded_dim = 64 if head_dim <= 64 else 128
    prepare, backward, convert = _kernels(padded_dim, rows_aligned(out), q.dtype == torch.bfloat16)
    rows, keys = sm90.backward_rows(padded_dim), sm90.BACKWARD_KEYS

    row_tiles = batch * heads * -(-seqlen_q // rows)
    key_tiles = batch * heads_kv * -(-seqlen_k // keys)
    statistics = lse.new_empty(row_tiles * rows, 2)
    partial_dq = lse.new_empty(row_tiles * rows, padded_dim)
    semaphores = torch.zeros(1 + row_tiles, dtype=torch.int32, device=q.device)
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    scale = np.float32(softmax_scale)
    prepare_sizes = (seqlen_q, seqlen_k, head_dim, heads, causal_offset)
    # Of fewer heads, so many key blocks would run at once that they wait for each other; of more, none would find a
    # neighbour's queries in L2.
    heads_together = max(16, 256 // -(-seqlen_q // rows))
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // heads_kv, batch, heads_together, causal_offset)
    convert_sizes = (seqlen_q, seqlen_k, head_dim, causal_offset)
    maps = [TensorMap(q, rows), TensorMap(k, keys), TensorMap(v, keys), TensorMap(dout, rows)]
    return [
        Step(
            prepare,
            (row_tiles, 1, 1),
            [out, dout, lse, dq, statistics, *strides(out, dout), *map(np.int32, prepare_sizes)],
        ),
        Step(
            backward,
            (key_tiles, 1, 1),
            [*maps, statistics, partial_dq, semaphores, dk, dv, *map(np.int32, sizes), scale],
        ),
        Step(convert, (row_tiles, 1, 1), [partial_dq, dq, *map(np.int32, convert_sizes), scale]),
    ]


@functools.cache
def _kernels(padded_dim: int, aligned: bool, bfloat16: bool) -> tuple[Kernel, Kernel, Kernel]:
    return (
        sm90.backward_prepare_kernel(padded_dim, bfloat16, aligned),
        sm90.backward_kernel(padded_dim, bfloat16),
        sm90.backward_convert_kernel(padded_dim, bfloat16),
    )
