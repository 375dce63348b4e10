"""FlexAttention, compiled for one case: shared by dense and block-sparse attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.contender import Prepared, Target
from harness.lazy import lazy_import
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")

BLOCK = 128  # the sparse block that the default tiles divide


def flex_unavailable(target: Target) -> str | None:
    if target.is_cuda:
        return None
    return "on a CPU it has no backward and compiles C++ for half a minute per shape; run on an NVIDIA GPU"


def flex_unsupported(params: AttentionParams) -> str | None:
    if params.head_dim < 16:
        return f"head_dim {params.head_dim} is below its least of 16; pad it or use sdpa_math"
    return None


def prepare_flex(params: AttentionParams, inputs: Tensors, mask_mod: Callable[..., Any] | None, heads: int) -> Prepared:
    """Compile and call once. `mask_mod(batch, head, query, key)` is True where a key is seen; `heads` says for
    how many heads it differs (1 or num_heads)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    block_mask = None
    if mask_mod is not None:
        of_heads = None if heads == 1 else heads
        lengths = (params.seqlen_q, params.seqlen_k)
        block_mask = create_block_mask(mask_mod, None, of_heads, *lengths, inputs["q"].device, BLOCK_SIZE=BLOCK)
    # Past a handful of recompilations dynamo would run the function uncompiled; start every case afresh.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    grouped = params.num_heads != params.num_heads_kv

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, block_mask=block_mask, enable_gqa=grouped)

    # A compiled backward may reuse its saved tensors as scratch, and would then refuse to run a second time.
    with torch._functorch.config.patch(donated_buffer=False):
        run = attention_call(forward, inputs)
        run()  # compiles
    tuning = {} if block_mask is None else {"block_mask": BLOCK, "kept_share": 1 - block_mask.sparsity() / 100}
    return Prepared(run, backend="library", tuning=tuning)
