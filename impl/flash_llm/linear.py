"""A layer whose weight is compressed, in place of nn.Linear; for inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from impl.flash_llm.api import expand, refuse_gradient, spmm
from impl.flash_llm.choice import choose_format, dense_columns
from impl.flash_llm.formats import FORMATS, SparseMatrix
from impl.flash_llm.kernels import Device


class SparseLinear(nn.Module):
    """y = x W^T + bias, as nn.Linear, with W [out_features, in_features] compressed; float16, without gradients.

    x: [..., in_features]; y: [..., out_features], contiguous. Where x has `dense_from` rows or more (prefill), W is
    expanded for the call, 2 bytes per element, and multiplied densely; `path` says which way a number of rows goes.

    The buffers `<format>_data` and `<format>_offsets` hold W. A state dict may bring any W of this shape, in any
    format; it is checked whole.
    """

    def __init__(self, weight: SparseMatrix, bias: Tensor | None = None) -> None:
        """weight: W; bias: [out_features] float16 on its device. Raises ValueError for another bias."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        if bias is not None and (bias.shape != (self.out_features,) or bias.dtype != torch.float16):
            raise ValueError(f"bias must be [{self.out_features}] float16, not {list(bias.shape)} {bias.dtype}")
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._hold(weight)

    @classmethod
    def from_linear(cls, linear: nn.Linear, kind: type[SparseMatrix] | None = None) -> SparseLinear:
        """Compress the weight of a float16 layer into `kind`, or the format of `choice.choose_format`.

        Raises TypeError for another dtype.
        """
        w = linear.weight.detach()
        kind = kind or choose_format(int(w.count_nonzero()), (w.shape[0], w.shape[1]), Device.of(w.device))
        return cls(kind.from_dense(w), linear.bias)

    def _hold(self, weight: SparseMatrix) -> None:
        for name in [name for name in self._buffers if name != "bias"]:
            del self._buffers[name]
        self.kind, self.longest = weight.name, weight.longest
        self.register_buffer(f"{self.kind}_data", weight.data)
        self.register_buffer(f"{self.kind}_offsets", weight.offsets)
        self.dense_from = dense_columns(self.kind)

    @property
    def weight(self) -> SparseMatrix:
        """W, compressed."""
        data, offsets = (getattr(self, f"{self.kind}_{name}") for name in ("data", "offsets"))
        return FORMATS[self.kind].of_parts(data, offsets, (self.out_features, self.in_features), self.longest)

    def path(self, rows: int) -> Literal["sparse", "dense"]:
        """Which way a product with so many rows of x goes."""
        return "dense" if rows >= self.dense_from else "sparse"

    def forward(self, x: Tensor) -> Tensor:
        """Raises ValueError for an x of another width, and as `impl.flash_llm.api.spmm` does."""
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x must be [..., {self.in_features}], not {list(x.shape)}")
        refuse_gradient(x)
        if x.dtype != torch.float16 and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"x must be float16, not {x.dtype}")
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] == 0 or self.path(rows.shape[0]) == "dense":
            return nn.functional.linear(x, expand(self.weight), self.bias)
        columns = spmm(self.weight, rows.T)
        y = columns.new_empty(rows.shape[0], self.out_features)
        if self.bias is None:
            y.copy_(columns.T)
        else:
            torch.add(columns.T, self.bias, out=y)
        return y.view(*x.shape[:-1], self.out_features)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        """Take W in the format that the state dict has, before the module's own loading takes what has its names."""
        found = [kind for kind in FORMATS if f"{prefix}{kind}_data" in state_dict]
        errors, device = rest[-1], self.weight.device
        if len(found) > 1:
            errors.append(f"{prefix}: W in several formats, {', '.join(found)}; one is right")
        elif found and f"{prefix}{found[0]}_offsets" in state_dict:
            parts = [state_dict[f"{prefix}{found[0]}_{name}"].to(device, copy=True) for name in ("data", "offsets")]
            try:
                self._hold(FORMATS[found[0]](*parts, (self.out_features, self.in_features)))
            except (TypeError, ValueError) as error:
                errors.append(f"{prefix}{found[0]}: {error}")
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)

    def extra_repr(self) -> str:
        weight = self.weight
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"format={self.kind}, bytes={weight.nbytes}, dense_from={self.dense_from}"
        )
