"""Which tensors the sm_90a forward kernels take, their launch geometry and their arguments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap, loadable
from impl.spark_attention.kernels import sm90


def takes(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> bool:
    """Whether the copy engine can load the inputs, and 16-byte stores can write the output; if not, sm80 can."""
    return (
        q.shape[-1] % 8 == 0
        and all(map(loadable, (q, k, v)))
        and out.data_ptr() % 16 == 0
        and all(stride % 8 == 0 for stride in out.stride()[:3])
    )


def forward_call(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, softmax_scale: float
) -> tuple[Kernel, tuple[int, int, int], list[Tensor | TensorMap | np.generic]]:
    """Kernel, grid and arguments of the forward into `out` and `lse` (as of kernels.forward.empty_outputs).

    The tensors must be ones that `takes` accepts.
    """
    batch, heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    padded_dim = 64 if head_dim <= 64 else 128
    kernel = sm90.forward_kernel(padded_dim, causal, q.dtype == torch.bfloat16)
    block_m, block_n = sm90.block_m(padded_dim), sm90.block_n(padded_dim, causal)
    query_tiles = -(-seqlen_q // block_m)
    tiles = query_tiles * heads * batch
    causal_offset = seqlen_k - seqlen_q if causal else seqlen_k
    sizes = (seqlen_q, seqlen_k, head_dim, heads, heads // k.shape[1], causal_offset, query_tiles, tiles)
    arguments = [
        TensorMap(q, block_m),
        TensorMap(k, block_n),
        TensorMap(v, block_n),
        out,
        lse,
        *map(np.int64, out.stride()[:3]),
        *map(np.int32, sizes),
        np.float32(softmax_scale),
    ]
    return kernel, (tiles, 1, 1), arguments
