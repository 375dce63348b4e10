"""The weights of a decoding step's model, float16, one tensor at a time: drawn or read, the matrices pruned.

Imports torch; planning must not import this module.
"""

from __future__ import annotations

import zlib

import torch
from safetensors import safe_open
from torch import Tensor

from harness.ops.checkpoint import Entry, read_index
from harness.ops.decode_step import AROUND, PRUNED, DecodeStepParams, in_checkpoint
from impl.flash_llm.pruning import prune_


class OptWeights:
    """Each call makes the tensor anew, the same one for the same params on the same kind of device."""

    def __init__(self, params: DecodeStepParams, device: torch.device | str) -> None:
        self._params, self._device = params, torch.device(device)
        self._index = read_index(params.checkpoint) if params.checkpoint is not None else None

    def around(self, name: str) -> Tensor:
        """Embedding, positions, and the last norm's weight and bias."""
        if self._index is not None:
            return self._read(self._index[AROUND[name]])
        return self._draw(name, self._params.shape.around()[name])

    def of_layer(self, layer: int, name: str) -> Tensor:
        """A weight or bias of a layer; queries', keys' and values' matrices are one, and pruned as one."""
        if self._index is not None:
            tensor = torch.cat([self._read(self._index[theirs]) for theirs in in_checkpoint(layer, name)])
        else:
            tensor = self._draw(f"{layer}.{name}", self._params.shape.of_layer()[name])
        module, kind = name.split(".")
        return prune_(tensor, self._params.sparsity) if module in PRUNED and kind == "weight" else tensor

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Matrices normal with a variance of 1 / columns; norms' weights around 1 and biases around 0, by 0.1."""
        seed = zlib.crc32(f"{self._params.seed} {name}".encode())
        generator = torch.Generator(self._device).manual_seed(seed)
        drawn = torch.randn(shape, generator=generator, device=self._device, dtype=torch.float16)
        if drawn.ndim > 1:
            return drawn.mul_(shape[-1] ** -0.5)
        return drawn.mul_(0.1).add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def _read(self, entry: Entry) -> Tensor:
        with safe_open(entry.file, framework="pt") as file:
            tensor = file.get_tensor(entry.name).to(self._device, torch.float16)
        if not tensor.isfinite().all():
            raise ValueError(f"{entry.file}: {entry.name} has values that are not finite in float16")
        return tensor
