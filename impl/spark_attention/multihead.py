"""torch.nn.MultiheadAttention by SparkAttention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from impl.spark_attention.api import spark_attention


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with its constructor, parameters and state_dict, in float16 or bfloat16, or under
    autocast. `add_bias_kv` and `add_zero_attn` raise NotImplementedError.

    Attention weights never exist in the fused kernel: with `need_weights=True`, torch's default, torch computes this
    call, unfused. A query whose keys are all masked gets what the output projection makes of 0, where torch has NaN.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.bias_k is not None or self.add_zero_attn:
            raise NotImplementedError("MultiheadAttention supports neither add_bias_kv nor add_zero_attn")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's. Boolean masks are True where a key is hidden, floating ones are added. `is_causal` is a hint that
        `attn_mask` is the causal mask of a square matrix of scores."""
        if need_weights:
            masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}
            return super().forward(query, key, value, average_attn_weights=average_attn_weights, **masks)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask, and needs one")
        self._check(query, key, value, key_padding_mask, attn_mask)

        batch_axis = 0 if self.batch_first else 1
        batched = query.ndim == 3
        q, k, v = self._project(query, key, value)
        if not batched:
            q, k, v = (t.unsqueeze(batch_axis) for t in (q, k, v))
        q, k, v = (self._split_heads(t) for t in (q, k, v))
        is_causal = is_causal and q.shape[2] == k.shape[2]
        out = spark_attention(
            *(q, k, v),
            causal=is_causal,
            mask=_merge(_attention_mask(None if is_causal else attn_mask, q), _padding_mask(key_padding_mask)),
            dropout_p=self.dropout if self.training else 0.0,
        )
        out = out.transpose(1, 2).flatten(2)
        out = out if self.batch_first else out.transpose(0, 1)
        return self.out_proj(out if batched else out.squeeze(batch_axis)), None

    def _check(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None) -> None:
        """Raises ValueError for shapes that torch refuses."""
        widths = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for name, (x, width) in widths.items():
            if x.ndim not in (2, 3) or x.ndim != query.ndim or x.shape[-1] != width:
                alike = "" if name == "query" else f" with the {query.ndim} axes of query"
                raise ValueError(f"{name} must be of 2 or 3 axes, the last {width}{alike}, not {list(x.shape)}")
        batch_axis, length_axis = (0, 1) if self.batch_first else (1, 0)
        batch = [query.shape[batch_axis]] if query.ndim == 3 else []
        seqlen_q, seqlen_k = (x.shape[length_axis if batch else 0] for x in (query, key))
        if padding is not None and list(padding.shape) != [*batch, seqlen_k]:
            raise ValueError(f"key_padding_mask must be {[*batch, seqlen_k]}, not {list(padding.shape)}")
        shapes = [[seqlen_q, seqlen_k], [math.prod(batch) * self.num_heads, seqlen_q, seqlen_k]]
        if mask is not None and list(mask.shape) not in shapes:
            raise ValueError(f"attn_mask must be {shapes[0]} or {shapes[1]}, not {list(mask.shape)}")

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._qkv_same_embed_dim and query is key is value:
            return linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(map(linear, (query, key, value), weights, biases))

    def _split_heads(self, x: Tensor) -> Tensor:
        """[batch, heads, seqlen, head_dim] of a projection."""
        x = x if self.batch_first else x.transpose(0, 1)
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


def _attention_mask(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """`attn_mask`, [seqlen_q, seqlen_k] or with batch * heads before, as one that broadcasts to q's scores."""
    if mask is None or mask.ndim == 2:
        return mask
    return mask.unflatten(0, q.shape[:2])


def _padding_mask(mask: Tensor | None) -> Tensor | None:
    """`key_padding_mask`, [batch, seqlen_k] or [seqlen_k], likewise."""
    return None if mask is None else mask.view(-1, 1, 1, mask.shape[-1])


def _merge(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both of torch's masks as one of `spark_attention`'s."""
    masks = [mask for mask in (first, second) if mask is not None]
    if any(mask.is_floating_point() for mask in masks):
        added = [_added(mask) if mask.dtype == torch.bool else mask.float() for mask in masks]
        return sum(added[1:], added[0])
    visible = [~mask for mask in masks]
    return visible[0] & visible[-1] if visible else None


def _added(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, -torch.inf)
