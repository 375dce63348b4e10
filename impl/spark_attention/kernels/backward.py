"""The backward on a GPU: its scratch, and its two launches (backward_arguments.cuh)."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.steps import Launch, Step, rows_aligned, strides
from impl.spark_attention.extras import NONE, Extras
from impl.spark_attention.kernels import backward_sm70, backward_sm90, sm80
from impl.spark_attention.kernels.extras import Features, extra_arguments, features_of
from impl.spark_attention.kernels.forward import MAX_GRID_BATCH, check_supported


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    softmax_scale: float,
    launch: Launch,
    arch: str = "sm_80",
    extras: Extras = NONE,
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.attention_backward` by the kernels written for `arch`; those for sm_80 stand in for the sm_90a ones
    where these do not take the tensors. `launch` runs one (impl.cuda.launch or the emulator's).

    The gradients are contiguous, and the same bit for bit from run to run. Scratch is 4 bytes for each row of q by the
    sm_70 kernels, which take float16 only, and 4 bytes for each element of q, head_dim rounded up to 64 or 128, by the
    others. Raises ValueError where `arch` has no kernel for the element type.
    """
    check_supported(q.dtype, "fp32", arch)
    if dout.stride(-1) != 1:  # as the gradient of a sum, which is one number expanded
        dout = dout.contiguous()
    gradients = tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    options = {"causal": causal, "softmax_scale": softmax_scale}
    if arch == "sm_90a" and not extras and backward_sm90.takes(q, k, v):
        steps = backward_sm90.backward_steps(dout, q, k, v, out, lse, *gradients, **options)
        for step in steps:
            launch(step.kernel, step.grid, step.arguments)
        return gradients
    steps_of = backward_sm70.backward_steps if arch == "sm_70" else backward_steps
    for first in range(0, len(q), MAX_GRID_BATCH):
        part = (t[first : first + MAX_GRID_BATCH] for t in (dout, q, k, v, out, lse, *gradients))
        for step in steps_of(*part, **options, extras=extras, first_batch=first):
            launch(step.kernel, step.grid, step.arguments)
    return gradients


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
    batch, heads, seqlen_q, head_dim = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    padded_dim = 64 if head_dim <= 64 else 128
    aligned = head_dim % 8 == 0 and all(rows_aligned(t) for t in (dout, q, k, v, out))
    prepare, backward = _kernels(padded_dim, aligned, q.dtype == torch.bfloat16, features_of(extras))

    row_tiles = batch * heads * -(-seqlen_q // sm80.BACKWARD_ROWS)
    key_tiles = batch * heads_kv * -(-seqlen_k // sm80.BACKWARD_KEYS)
    statistics = lse.new_empty(row_tiles * sm80.BACKWARD_ROWS, 2)
    partial_dq = lse.new_empty(row_tiles * sm80.BACKWARD_ROWS, padded_dim)
    semaphores = torch.zeros(1 + row_tiles, dtype=torch.int32, device=q.device)
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k

    prepare_sizes = (seqlen_q, seqlen_k, head_dim, heads, causal_offset)
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // heads_kv, batch, causal_offset)
    steps = [
        Step(
            prepare,
            (row_tiles, 1, 1),
            [out, dout, lse, dq, statistics, *strides(out, dout), *map(np.int32, prepare_sizes)],
        ),
        Step(
            backward,
            (key_tiles, 1, 1),
            [
                *(q, k, v, dout, statistics, partial_dq, semaphores, dq, dk, dv),
                *(*strides(q, k, v, dout), *map(np.int32, sizes), np.float32(softmax_scale)),
                *extra_arguments(extras, first_batch),
            ],
        ),
    ]
    return [step for step in steps if step.grid[0] > 0]


@functools.cache
def _kernels(padded_dim: int, aligned: bool, bfloat16: bool, features: Features) -> tuple[Kernel, Kernel]:
    variant = (padded_dim, aligned, bfloat16)
    return sm80.backward_prepare_kernel(*variant), sm80.backward_kernel(*variant, features)
