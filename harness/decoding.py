"""Contenders of a decoding step: the model is the same for all, but for its products by the pruned matrices."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from harness.contender import Contender, Prepared, Target
from harness.ops.decode_step import needed_bytes

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from harness.ops.base import Tensors
    from harness.ops.decode_step import DecodeStepParams
    from harness.ops.decoder import Decoder

MODEL = tuple(f"harness/ops/{name}.py" for name in ("checkpoint", "decode_step", "decoder", "opt_weights"))
USABLE = 0.98  # share of the device's memory; the rest is the CUDA context's


class DecodeContender(Contender):
    """A decoder with this contender's products."""

    op = "decode_step"
    sources = ("harness/decoding.py", *MODEL)

    @abstractmethod
    def stored_bytes(self, elements: int, sparsity: float) -> float:
        """Memory that pruned matrices of so many elements take, as far as it can be told before they are made."""

    @abstractmethod
    def product(self, weight: Tensor, bias: Tensor) -> Module:
        """x -> x W^T + bias, for W [out, in] float16 with zeros."""

    @abstractmethod
    def fields(self, decoder: Decoder, params: DecodeStepParams) -> dict[str, Any]:
        """What ran: fields of Prepared."""

    def unsupported(self, params: DecodeStepParams, target: Target) -> str | None:
        """By arithmetic, before anything is allocated."""
        if not (target.is_cuda and target.memory_bytes):
            return None
        weights = self.stored_bytes(params.shape.pruned_elements, params.sparsity)
        needed = needed_bytes(params, weights)
        if needed <= USABLE * target.memory_bytes:
            return None
        return (
            f"needs {needed / 1e9:.0f} GB: {weights / 1e9:.0f} of pruned matrices, {params.cache_bytes / 1e9:.0f} of "
            f"key-value cache; {target.name} has {target.memory_bytes / 1e9:.0f}: at least "
            f"{-(-needed // int(USABLE * target.memory_bytes))} of them, and one is used here"
        )

    def prepare(self, params: DecodeStepParams, inputs: Tensors, target: Target) -> Prepared:
        import torch

        from harness.ops.decoder import Decoder
        from harness.ops.spmm import float32_reductions

        tokens, last = inputs["tokens"], params.context - 1
        decoder = Decoder(params, target.device, self.product)
        with torch.no_grad(), float32_reductions():
            decoder.prefill(tokens[:, :last])

        def run() -> dict[str, Tensor]:
            with torch.no_grad(), float32_reductions():
                return decoder.step(tokens[:, last:], last)

        made = {"parts": decoder.parts(params.batch), "resident_bytes": decoder.nbytes}
        return Prepared(run, **made, **self.fields(decoder, params))
