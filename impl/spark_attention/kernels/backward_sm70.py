"""The backward on Volta: launch geometry and arguments of its two kernels (backward_arguments_sm70.cuh)."""

from __future__ import annotations

import numpy as np
import torch

from impl.cuda.steps import Step, rows_aligned, strides
from impl.spark_attention.kernels import sm70
from impl.spark_attention.kernels.call import Backward
from impl.spark_attention.kernels.extras import extra_arguments, features_of


def backward_steps(b: Backward) -> list[Step]:
    """What to launch, in order; scratch is 4 bytes for each row of q."""
    s = b.shape
    inputs = (b.dout, b.q, b.k, b.v, b.out)
    aligned = s.head_dim % 8 == 0 and all(map(rows_aligned, inputs))
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.group, s.causal_offset)
    arguments = [
        *(*inputs, b.lse, torch.empty_like(b.lse), b.dq, b.dk, b.dv, *strides(*inputs)),
        *(*map(np.int32, sizes), np.float32(b.softmax_scale), *extra_arguments(b.extras, b.first_batch)),
    ]
    features = features_of(b.extras)
    tile = sm70.backward_rows(s.padded_dim, features)
    dq, dkdv = (sm70.backward_kernel(name, s.padded_dim, aligned, features) for name in ("dq", "dkdv"))
    return [
        Step(dq, (-(-s.seqlen_q // tile), s.heads, s.batch), arguments),
        Step(dkdv, (-(-s.seqlen_k // tile), s.heads_kv, s.batch), arguments),
    ]
