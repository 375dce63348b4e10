"""Which tensors the sm_90a forward kernels take, their launch geometry and their arguments."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from impl.cuda.build import Kernel
from impl.cuda.tensor_map import TensorMap, loadable
from impl.spark_attention.kernels import sm90
from impl.spark_attention.kernels.call import shape_of

# Elements of the keys of the heads whose tiles are taken together; with the values 16 MiB of L2. A causal mask makes
# long and short tiles, and of more heads they even out.
_KEYS_TOGETHER = {False: 2**22, True: 2**23}


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
    s = shape_of(q, k, causal)
    block_m, block_n = sm90.block_m(s.padded_dim), sm90.block_n(s.padded_dim, s.seqlen_k)
    kernel = sm90.forward_kernel(s.padded_dim, block_n, q.dtype == torch.bfloat16)
    query_tiles = -(-s.seqlen_q // block_m)
    tiles = query_tiles * s.heads * s.batch
    heads_together = max(1, _KEYS_TOGETHER[causal] // (s.seqlen_k * s.padded_dim))
    sizes = (s.seqlen_q, s.seqlen_k, s.head_dim, s.heads, s.group, s.batch, heads_together, s.causal_offset)
    arguments = [
        *(TensorMap(q, 64), TensorMap(k, block_n), TensorMap(v, block_n), out, lse),
        torch.zeros(1, dtype=torch.int32, device=q.device),
        *map(np.int64, out.stride()[:3]),
        *map(np.int32, (*sizes, query_tiles, tiles)),
        np.float32(softmax_scale),
    ]
    return kernel, (min(tiles, _blocks(q.device)), 1, 1), arguments


@functools.cache
def _blocks(device: torch.device) -> int:
    """As many as run at once, one on each multiprocessor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
