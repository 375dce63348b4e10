"""The backward on Volta: launch geometry and arguments of its two kernels (backward_arguments_sm70.cuh)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from impl.cuda.steps import Step, rows_aligned, strides
from impl.spark_attention.kernels import sm70


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
    """What to launch, in order, to fill the contiguous dq, dk, dv; fewer steps where there are no queries or keys."""
    if dout.stride(-1) != 1:  # as the gradient of a sum, which is one number expanded
        dout = dout.contiguous()
    (batch, heads, seqlen_q, head_dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    inputs = (dout, q, k, v, out)
    padded_dim = 64 if head_dim <= 64 else 128
    aligned = head_dim % 8 == 0 and all(map(rows_aligned, inputs))
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // heads_kv, causal_offset)
    delta = torch.empty_like(lse)
    arguments = [*inputs, lse, delta, dq, dk, dv, *strides(*inputs), *map(np.int32, sizes), np.float32(softmax_scale)]

    tile = sm70.backward_rows(padded_dim)
    steps = [
        Step(sm70.backward_kernel("dq", padded_dim, aligned), (-(-seqlen_q // tile), heads, batch), arguments),
        Step(sm70.backward_kernel("dkdv", padded_dim, aligned), (-(-seqlen_k // tile), heads_kv, batch), arguments),
    ]
    return [step for step in steps if 0 not in step.grid]
