"""Attention, forward and backward: O = softmax(Q K^T / sqrt(D)) V.

Tensors are [batch, heads, seqlen, head_dim]. A causal mask is aligned bottom-right: query i sees keys
j <= i + seqlen_k - seqlen_q; a row that sees no key is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from harness.case import CaseParams
from harness.lazy import lazy_import
from harness.ops import dense
from harness.ops.base import ITEMSIZE, Op, Tensors
from harness.ops.masks import causal_mask, visible_pairs

if TYPE_CHECKING:
    from torch import Tensor

torch = lazy_import("torch")


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
        short_forms = {"seqlen_q": "seqlen", "seqlen_k": "seqlen", "batch": "tokens", "num_heads": "hidden"}
        for full, short in short_forms.items():
            if short in fields and full in fields:
                raise ValueError(f"{short} and {full} are both given; remove one")
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


class Attention(Op):
    """Inputs q, k, v (and dout for the backward), standard normal; outputs out, or dq, dk, dv."""

    name = "attention"
    Params = AttentionParams

    def inputs(self, params: AttentionParams, device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(params.seed)
        kv = (params.num_heads_kv, params.seqlen_k)
        sizes = {"q": (params.num_heads, params.seqlen_q), "k": kv, "v": kv}
        if params.direction == "backward":
            sizes["dout"] = sizes["q"]
        options = {"generator": generator, "device": device, "dtype": getattr(torch, params.dtype)}
        return {n: torch.randn(params.batch, *size, params.head_dim, **options) for n, size in sizes.items()}

    def reference(self, params: AttentionParams, inputs: Tensors) -> dict[str, Tensor]:
        return self.plain(params, inputs, torch.float64)

    def plain(self, params: AttentionParams, inputs: Tensors, dtype: Any) -> dict[str, Tensor]:
        def mask(heads: range, rows: range) -> tuple[Tensor | None, None]:
            if not params.causal:
                return None, None
            return causal_mask(rows, params.seqlen_q, params.seqlen_k, inputs["q"].device), None

        return dense.attention(inputs, dtype, mask)

    def gate_factors(self, params: AttentionParams) -> dict[str, float]:
        return {"out": 2.0} if params.direction == "forward" else {"dq": 3.0, "dk": 3.0, "dv": 3.0}

    def flops(self, params: AttentionParams) -> float:
        return self._flops_of_pairs(params, visible_pairs(params.seqlen_q, params.seqlen_k, params.causal))

    @staticmethod
    def _flops_of_pairs(params: AttentionParams, pairs: int) -> float:
        """`pairs` (query, key) pairs per head: two products forward; backward five, as flash kernels recompute QK."""
        forward = 4.0 * params.batch * params.num_heads * pairs * params.head_dim
        return forward if params.direction == "forward" else 2.5 * forward

    def bytes_floor(self, params: AttentionParams) -> int:
        q, kv = self._elements(params)
        elements = 2 * q + 2 * kv if params.direction == "forward" else 3 * q + 4 * kv
        return elements * ITEMSIZE[params.dtype]

    def peak_bytes_estimate(self, params: AttentionParams) -> int:
        q, kv = self._elements(params)
        pairs = params.batch * params.num_heads * params.seqlen_q * params.seqlen_k
        matrices = 3 if params.direction == "forward" else 5  # scores, probabilities, mask fills, their gradients
        upcast = 4  # the math backend materialises float32
        references = 8 * (4 * q + 4 * kv) + 6 * min(dense.SCORE_BYTES, 8 * pairs)
        return 2 * self.bytes_floor(params) + max(references, matrices * upcast * pairs)

    @staticmethod
    def _elements(params: AttentionParams) -> tuple[int, int]:
        """Elements of q, and of k."""
        per_head = params.batch * params.head_dim
        return per_head * params.num_heads * params.seqlen_q, per_head * params.num_heads_kv * params.seqlen_k

    def columns(self, params: AttentionParams) -> dict[str, Any]:
        shape = ("batch", "num_heads", "num_heads_kv", "seqlen_q", "seqlen_k", "head_dim")
        return {key: getattr(params, key) for key in ("direction", "dtype", "seed", *shape, "causal")}
