"""Compressed weights on disk: one safetensors file each, with checksums, checked whole when it is read.

A file holds the tensors `data` and `offsets`; its metadata say `format`, `version`, `shape` ("m k") and, for each
tensor, the `checksums` of its bytes in chunks of 16 MiB (BLAKE2b of 8 bytes, hexadecimal, one after the other).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from impl.flash_llm.formats import FORMATS, SparseMatrix

_CHUNK_BYTES = 1 << 24
_TENSORS = ("data", "offsets")
_KINDS = {f"flash_llm.{kind.name}": kind for kind in FORMATS.values()}


def save(weight: SparseMatrix, path: str | Path) -> None:
    """Write `weight` to `path`, in place of what was there, whole or not at all."""
    tensors = {name: getattr(weight, name).cpu() for name in _TENSORS}
    metadata = {
        "format": f"flash_llm.{weight.name}",
        "version": weight.version,
        "shape": " ".join(map(str, weight.shape)),
    }
    metadata |= {f"checksums.{name}": "".join(_checksums(tensor)) for name, tensor in tensors.items()}
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        save_file(tensors, part, metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(path: str | Path, device: torch.device | str = "cpu") -> SparseMatrix:
    """The weight that `save` wrote, on `device`.

    Raises ValueError, with the file and the place in it, when it is truncated, altered or no such file, and OSError
    when it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kind = _KINDS.get(metadata.get("format"))
            if kind is None or metadata.get("version") != kind.version:
                found = f"format {metadata.get('format')}, version {metadata.get('version')}"
                known = ", ".join(f"{name} of version {kind.version}" for name, kind in _KINDS.items())
                raise ValueError(f"{found}; known are {known}")
            m, k = map(int, metadata["shape"].split())
            parts = [_tensor(file, name, metadata[f"checksums.{name}"]).to(device, copy=True) for name in _TENSORS]
        return kind(*parts, (m, k))
    except SafetensorError as error:
        raise ValueError(f"{path}: no whole safetensors file: {error}") from None
    except KeyError as error:
        raise ValueError(f"{path}: {error} is missing in its metadata") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _tensor(file: safe_open, name: str, checksums: str) -> Tensor:
    tensor = file.get_tensor(name)
    found = _checksums(tensor)
    if len(checksums) != 16 * len(found):
        raise ValueError(f"{name}: checksums of {len(checksums) // 16} chunks for {len(found)}")
    for number, checksum in enumerate(found):
        if checksum != checksums[16 * number : 16 * (number + 1)]:
            begin = number * _CHUNK_BYTES
            end = min(begin + _CHUNK_BYTES, tensor.nbytes)
            raise ValueError(f"{name}: bytes {begin} to {end} are not those that were saved")
    return tensor


def _checksums(tensor: Tensor) -> list[str]:
    content = memoryview(tensor.flatten().view(torch.uint8).numpy())
    chunks = (content[begin : begin + _CHUNK_BYTES] for begin in range(0, len(content), _CHUNK_BYTES))
    return [hashlib.blake2b(chunk, digest_size=8).hexdigest() for chunk in chunks]
