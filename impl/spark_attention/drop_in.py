"""SparkAttention under the signatures that users know: FlashAttention's function and torch's. What is not supported
raises."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.spark_attention.api import check_tensors, spark_attention


def spark_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """`flash_attn.flash_attn_func` by `spark_attention`: q, k, v and the result are [batch, seqlen, heads, head_dim].

    The result is contiguous, as there, so that a view joins its heads. The causal mask is aligned bottom-right, as
    there. The backward is deterministic either way. Raises NotImplementedError for a window, a soft cap, ALiBi slopes
    or the probabilities, else as `spark_attention` does.
    """
    unsupported = {
        "window_size": window_size not in ((-1, -1), [-1, -1]),
        "softcap": softcap != 0,
        "alibi_slopes": alibi_slopes is not None,
        "return_attn_probs": return_attn_probs,
    }
    _refuse(unsupported)
    check_tensors("batch, seqlen, heads, head_dim", q=q, k=k, v=v)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = spark_attention(q, k, v, causal=causal, softmax_scale=softmax_scale, dropout_p=dropout_p)
    return out.transpose(1, 2).contiguous()


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` by `spark_attention`, for [batch, heads, seqlen, head_dim].

    As there, and unlike `spark_attention`, `is_causal` is aligned top-left: query i sees the keys j <= i. A row that
    sees no key is 0. Raises ValueError for a mask beside `is_causal`, and for grouped heads without `enable_gqa`, else
    as `spark_attention` does.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal exclude each other, as in torch")
    check_tensors("batch, heads, seqlen, head_dim", query=query, key=key, value=value)
    if key.shape != value.shape:
        raise ValueError(f"key and value must agree in shape; got {list(key.shape)}, {list(value.shape)}")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"{query.shape[1]} query heads on {key.shape[1]} key-value heads need enable_gqa=True")
    seqlen_q, seqlen_k = query.shape[-2], key.shape[-2]
    if is_causal and seqlen_q < seqlen_k:  # keys past the last query are never seen; with the others it is bottom-right
        key, value = key[..., :seqlen_q, :], value[..., :seqlen_q, :]
    elif is_causal and seqlen_q > seqlen_k:
        is_causal, attn_mask = False, torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=query.device).tril()
    options = {"mask": attn_mask, "causal": is_causal, "softmax_scale": scale, "dropout_p": dropout_p}
    return spark_attention(query, key, value, **options)


def _refuse(unsupported: dict[str, bool]) -> None:
    for name, given in unsupported.items():
        if given:
            raise NotImplementedError(f"spark_attention does not support {name}")
