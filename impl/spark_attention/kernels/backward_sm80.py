"""The backward on Ampere and later: scratch and arguments of its two kernels (backward_arguments.cuh)."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Step, rows_aligned, strides
from impl.spark_attention.kernels import sm80
from impl.spark_attention.kernels.call import Backward
from impl.spark_attention.kernels.extras import Features, extra_arguments, features_of


def backward_steps(b: Backward) -> list[Step]:
    """What to launch, in order; scratch is 4 bytes for each element of q, head_dim rounded up to 64 or 128."""
    s = b.shape
    aligned = s.head_dim % 8 == 0 and all(map(rows_aligned, (b.dout, b.q, b.k, b.v, b.out)))
    prepare, backward = _kernels(s.padded_dim, aligned, b.is_bfloat16, features_of(b.extras))
    before, scratch = prepare_step(prepare, b, sm80.BACKWARD_ROWS)
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.group, s.batch, s.causal_offset)
    arguments = [
        *(b.q, b.k, b.v, b.dout, *scratch, b.dq, b.dk, b.dv, *strides(b.q, b.k, b.v, b.dout)),
        *(*map(np.int32, sizes), np.float32(b.softmax_scale), *extra_arguments(b.extras, b.first_batch)),
    ]
    key_tiles = s.batch * s.heads_kv * -(-s.seqlen_k // sm80.BACKWARD_KEYS)
    return [before, Step(backward, (key_tiles, 1, 1), arguments)]


def prepare_step(kernel: Kernel, b: Backward, rows: int) -> tuple[Step, tuple[Tensor, Tensor, Tensor]]:
    """What runs before a backward of tiles of `rows` queries, and their scratch: statistics, partial_dq, semaphores."""
    s = b.shape
    tiles = s.batch * s.heads * -(-s.seqlen_q // rows)
    statistics = b.lse.new_empty(tiles * rows, 2)
    partial_dq = b.lse.new_empty(tiles * rows, s.padded_dim)
    semaphores = torch.zeros(1 + tiles, dtype=torch.int32, device=b.q.device)
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.causal_offset)
    arguments = [b.out, b.dout, b.lse, b.dq, statistics, *strides(b.out, b.dout), *map(np.int32, sizes)]
    return Step(kernel, (tiles, 1, 1), arguments), (statistics, partial_dq, semaphores)


@functools.cache
def _kernels(padded_dim: int, aligned: bool, bfloat16: bool, features: Features) -> tuple[Kernel, Kernel]:
    variant = (padded_dim, aligned, bfloat16)
    return sm80.backward_prepare_kernel(*variant), sm80.backward_kernel(*variant, features)
