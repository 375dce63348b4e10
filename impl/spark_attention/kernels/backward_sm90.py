"""The backward on Hopper: which tensors its kernels take, their scratch, launch geometry and arguments."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Step, rows_aligned
from impl.cuda.tensor_map import TensorMap, loadable
from impl.spark_attention.kernels import sm90
from impl.spark_attention.kernels.backward_sm80 import prepare_step
from impl.spark_attention.kernels.call import Backward


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the copy engine can load the inputs, and 16-byte stores can write the gradients; if not, sm80 can."""
    return q.shape[-1] % 8 == 0 and all(map(loadable, (q, k, v)))


def backward_steps(b: Backward) -> list[Step]:
    """What to launch, in order, for tensors that `takes` accepts, without extras.

    Scratch is 4 bytes for each element of q, head_dim rounded up to 64 or 128.
    """
    if not loadable(b.dout):  # the gradient of a sum is one number expanded
        b = replace(b, dout=b.dout.contiguous())
    s = b.shape
    prepare, backward, convert = _kernels(s.padded_dim, rows_aligned(b.out), b.is_bfloat16)
    rows, keys = sm90.backward_rows(s.padded_dim), sm90.BACKWARD_KEYS
    before, (statistics, partial_dq, semaphores) = prepare_step(prepare, b, rows)
    scale = np.float32(b.softmax_scale)

    # Of fewer heads, so many key blocks would run at once that they wait for each other; of more, none would find a
    # neighbour's queries in L2.
    heads_together = max(16, 256 // -(-s.seqlen_q // rows))
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.group, s.batch, heads_together, s.causal_offset)
    maps = [TensorMap(b.q, rows), TensorMap(b.k, keys), TensorMap(b.v, keys), TensorMap(b.dout, rows)]
    arguments = [*maps, statistics, partial_dq, semaphores, b.dk, b.dv, *map(np.int32, sizes), scale]
    key_tiles = s.batch * s.heads_kv * -(-s.seqlen_k // keys)

    convert_sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.causal_offset)
    return [
        before,
        Step(backward, (key_tiles, 1, 1), arguments),
        Step(convert, before.grid, [partial_dq, b.dq, *map(np.int32, convert_sizes), scale]),
    ]


@functools.cache
def _kernels(padded_dim: int, aligned: bool, bfloat16: bool) -> tuple[Kernel, Kernel, Kernel]:
    return (
        sm90.backward_prepare_kernel(padded_dim, bfloat16, aligned),
        sm90.backward_kernel(padded_dim, bfloat16),
        sm90.backward_convert_kernel(padded_dim, bfloat16),
    )
