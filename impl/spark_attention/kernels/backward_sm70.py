"""The backward on Volta: launch geometry and arguments of its two kernels (backward_arguments_sm70.cuh)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from impl.cuda.steps import Step, rows_aligned, strides
from impl.spark_attention.extras import NONE, Extras
from impl.spark_attention.kernels import sm70
from impl.spark_attention.kernels.extras import extra_arguments, features_of


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
    extras: Extras = NONE,
    first_batch: int = 0,
) -> list[Step]:
    """What to launch, in order, to fill the contiguous dq, dk, dv; fewer steps where there are no queries or keys.

    The tensors but those of `extras` begin with sequence `first_batch`.
    """
    (batch, heads, seqlen_q, head_dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    inputs = (dout, q, k, v, out)
    padded_dim = 64 if head_dim <= 64 else 128
    aligned = head_dim % 8 == 0 and all(map(rows_aligned, inputs))
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // heads_kv, causal_offset)
    delta = torch.empty_like(lse)
    arguments = [*inputs, lse, delta, dq, dk, dv, *strides(*inputs), *map(np.int32, sizes), np.float32(softmax_scale)]
    arguments += extra_arguments(extras, first_batch)
    features = features_of(extras)

    tile = sm70.backward_rows(padded_dim, features)
    dq_kernel, dkdv_kernel = (sm70.backward_kernel(name, padded_dim, aligned, features) for name in ("dq", "dkdv"))
    steps = [
        Step(dq_kernel, (-(-seqlen_q // tile), heads, batch), arguments),
        Step(dkdv_kernel, (-(-seqlen_k // tile), heads_kv, batch), arguments),
    ]
    return [step for step in steps if 0 not in step.grid]
