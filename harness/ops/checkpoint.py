"""A folder of safetensors files with an OPT model, checked by the files' headers alone, without torch."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ITEMSIZE = {"F16": 2, "BF16": 2, "F32": 4}
_PREFIX = "decoder."  # names are told from here on: some files have "model." before it, others not


@dataclass(frozen=True)
class Entry:
    """Where a tensor is, and what it is like."""

    file: Path
    name: str  # in the file
    shape: tuple[int, ...]


def read_index(folder: str | Path) -> dict[str, Entry]:
    """The tensors below `decoder.` in the folder's safetensors files, by their name from there on.

    Raises ValueError, naming the file, for a folder without such files, a truncated or broken one, and a name that is
    there twice.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: no *.safetensors files there; name a folder with an OPT checkpoint in that format")
    index: dict[str, Entry] = {}
    for file in files:
        for name, entry in _header(file).items():
            if name == "__metadata__" or _PREFIX not in name:
                continue
            key = name[name.index(_PREFIX) + len(_PREFIX) :]
            if key in index:
                raise ValueError(f"{file}: {name} is in {index[key].file.name} too; remove one of the files")
            if entry["dtype"] not in _ITEMSIZE:
                raise ValueError(f"{file}: {name} is {entry['dtype']}; it must be one of {', '.join(_ITEMSIZE)}")
            index[key] = Entry(file, name, tuple(entry["shape"]))
    return index


def check_index(folder: str | Path, index: Mapping[str, Entry], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError for the first of the tensors `shapes` that is not there or has another shape."""
    for name, shape in shapes.items():
        if name not in index:
            raise ValueError(f"{folder}: no tensor {_PREFIX}{name} in its safetensors files; the model has it")
        if index[name].shape != shape:
            found = index[name]
            raise ValueError(f"{found.file}: {found.name} is {list(found.shape)}, the model has {list(shape)}")


def _header(file: Path) -> dict[str, Any]:
    """Of a safetensors file: 8 bytes of length, so many of JSON, and the data up to the end."""
    size = os.path.getsize(file)
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise ValueError(f"{file}: no whole safetensors file: {size} bytes, too few for its header")
        try:
            header = json.loads(opened.read(length))
            tensors = [entry for name, entry in header.items() if name != "__metadata__"]
            end = max((entry["data_offsets"][1] for entry in tensors), default=0)
            sizes = [(e["data_offsets"][1] - e["data_offsets"][0], math.prod(e["shape"]), e["dtype"]) for e in tensors]
        except (ValueError, AttributeError, KeyError, TypeError, IndexError):
            raise ValueError(f"{file}: no safetensors file: its header cannot be read") from None
    if size != 8 + length + end:
        raise ValueError(f"{file}: no whole safetensors file: {size} bytes, its header asks for {8 + length + end}")
    if any(have != elements * _ITEMSIZE[dtype] for have, elements, dtype in sizes if dtype in _ITEMSIZE):
        raise ValueError(f"{file}: no safetensors file: its header gives a tensor another size than its shape")
    return header
