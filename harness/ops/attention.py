"""Attention, forward and backward: O = softmax(Q K^T / sqrt(D)) V.

Tensors are [batch, heads, seqlen, head_dim]. A causal mask is aligned bottom-right: query i sees keys
j <= i + seqlen_k - seqlen_q; a row that sees no key is 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from harness.case import CaseParams


class AttentionParams(CaseParams):
    """A case. Short forms: `seqlen` sets both lengths, `tokens` gives batch = tokens / seqlen_q, `hidden`
    gives num_heads = hidden / head_dim, num_heads_kv is num_heads when left out."""

    direction: Literal["forward", "backward"] = "forward"
    batch: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_heads_kv: int = Field(gt=0)
    seqlen_q: int = Field(gt=0)
    seqlen_k: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    causal: bool = False

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, given: Any) -> Any:
        fields = dict(given)
        if "seqlen" in fields:
            fields["seqlen_q"] = fields["seqlen_k"] = fields.pop("seqlen")
        for whole, part, result in (("tokens", "seqlen_q", "batch"), ("hidden", "head_dim", "num_heads")):
            if whole not in fields:
                continue
            total, divisor = fields.pop(whole), fields.get(part)
            if not all(type(x) is int and x > 0 for x in (total, divisor)) or total % divisor:
                raise ValueError(f"{whole}={total!r} must be a positive multiple of {part}={divisor!r}")
            fields[result] = total // divisor
        fields.setdefault("num_heads_kv", fields.get("num_heads"))
        return fields

    @model_validator(mode="after")
    def _group_heads(self) -> AttentionParams:
        if self.num_heads % self.num_heads_kv:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_heads_kv={self.num_heads_kv}")
        return self

    def slug(self) -> str:
        mask = "causal" if self.causal else "full"
        return (
            f"{self.direction}.b{self.batch}.h{self.num_heads}.hkv{self.num_heads_kv}.sq{self.seqlen_q}"
            f".sk{self.seqlen_k}.d{self.head_dim}.{mask}.{self.dtype}.seed{self.seed}"
        )
