"""The backward on a GPU: the gradients, and the launches that fill them."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.cuda.steps import Launch, run
from impl.spark_attention.extras import NONE, Extras
from impl.spark_attention.kernels import backward_sm70, backward_sm80, backward_sm90
from impl.spark_attention.kernels.call import Backward
from impl.spark_attention.kernels.forward import check_supported


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    launch: Launch,
    arch: str = "sm_80",
    causal: bool,
    softmax_scale: float,
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
    whole = Backward(dout, q, k, v, out, lse, *gradients, causal, softmax_scale, extras)
    if arch == "sm_90a" and not extras and backward_sm90.takes(q, k, v):
        run(backward_sm90.backward_steps(whole), launch)
        return gradients
    source = backward_sm70 if arch == "sm_70" else backward_sm80
    for part in whole.parts():
        run(source.backward_steps(part), launch)
    return gradients
