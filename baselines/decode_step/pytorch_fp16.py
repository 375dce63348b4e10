"""A decoding step with dense float16 matrices, as PyTorch's users have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.decoding import DecodeContender
from harness.lazy import lazy_import

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Linear

    from harness.ops.decode_step import DecodeStepParams
    from harness.ops.decoder import Decoder

torch = lazy_import("torch")


class PytorchFp16(DecodeContender):
    """nn.Linear (cuBLAS, float32 sums) and scaled_dot_product_attention; zeros are multiplied like any number."""

    name = "pytorch_fp16"
    role = "baseline"
    label = "PyTorch FP16 (dense)"
    summary = "a decoding step with nn.Linear, that is cuBLAS, and scaled_dot_product_attention"
    source = "torch.nn.Linear"

    def stored_bytes(self, elements: int, sparsity: float) -> float:
        return 2.0 * elements

    def product(self, weight: Tensor, bias: Tensor) -> Linear:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=weight.dtype)
        linear.load_state_dict({"weight": weight, "bias": bias}, assign=True)
        return linear.requires_grad_(False)

    def fields(self, decoder: Decoder, params: DecodeStepParams) -> dict[str, Any]:
        return {"backend": "library"}
