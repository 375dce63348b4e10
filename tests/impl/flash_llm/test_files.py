"""Weights on disk: what was saved comes back, and a file that is truncated or altered is refused, with the place."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from impl.flash_llm.formats import FORMATS, files
from impl.flash_llm.formats.files import load, save
from tests.impl.flash_llm.matrices import random_sparse


@pytest.fixture
def weight(kind):
    return kind.from_dense(random_sparse(200, 300, 0.4))


@pytest.fixture
def path(weight, tmp_path):
    save(weight, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def rewrite(path, change=lambda tensors: None, **metadata):
    """The file again with other tensors and metadata, and checksums that fit, as a careful forger would."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
    change(tensors)
    sums = {f"checksums.{name}": "".join(files._checksums(tensor)) for name, tensor in tensors.items()}
    new = {name: value for name, value in {**old, **sums, **metadata}.items() if value is not None}
    save_file(tensors, path, new)


def test_comes_back(weight, path):
    loaded = load(path)
    assert (type(loaded), loaded.shape, loaded.longest) == (type(weight), weight.shape, weight.longest)
    assert torch.equal(loaded.data, weight.data)
    assert torch.equal(loaded.offsets, weight.offsets)


def test_what_was_loaded_does_not_hang_on_the_file(weight, path):
    loaded = load(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(loaded.data, weight.data)


def test_saving_again_replaces_the_file_and_leaves_no_other(weight, path):
    save(weight, path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("size", [0, 7, 100, -4096, -1])
def test_a_truncated_file_is_refused(path, size):
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"w\.safetensors: no whole safetensors file"):
        load(path)


def test_a_flipped_bit_anywhere_in_the_tensors_is_found(weight, path, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK_BYTES", 1000)
    save(weight, path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for name in ("data", "offsets"):
        begin, end = json.loads(whole[8:header])[name]["data_offsets"]
        for offset in torch.randint(end - begin, (20,)).tolist():
            altered = bytearray(whole)
            altered[header + begin + offset] ^= 1 << offset % 8
            path.write_bytes(altered)
            chunk = offset // 1000 * 1000
            place = f"bytes {chunk} to {min(chunk + 1000, end - begin)} are not those that were saved"
            with pytest.raises(ValueError, match=rf"w\.safetensors: {name}: {place}"):
                load(path)


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (lambda t: t["data"][0].fill_(-1), {}, "tile 0, from row 0 and column 0: "),
        (lambda t: t["offsets"][1].add_(2**20), {}, "offsets must rise from 0 to .* they fall from"),
        (lambda t: t.update(data=t["data"][:-1].clone()), {}, "offsets must rise from 0 to"),
        (lambda t: t.update(offsets=t["offsets"].long()), {}, "offsets must be a contiguous 1-D int32"),
        (lambda t: t.pop("offsets"), {}, "no whole safetensors file: .*offsets"),
        (lambda t: None, {"shape": "200 1000"}, "offsets has shape"),
        (lambda t: None, {"shape": "200"}, "not enough values"),
        (lambda t: None, {"shape": None}, "'shape' is missing"),
        (lambda t: None, {"checksums.data": None}, "'checksums.data' is missing"),
        (lambda t: None, {"checksums.data": "00"}, "data: checksums of 0 chunks for 1"),
        (
            lambda t: None,
            {"format": "flash_llm.other"},
            r"format flash_llm.other, version \d; known are flash_llm.tiled",
        ),
        (lambda t: None, {"version": "0"}, "version 0; known are"),
    ],
)
def test_an_altered_file_is_refused(path, change, metadata, message):
    rewrite(path, change, **metadata)
    with pytest.raises(ValueError, match=rf"w\.safetensors: .*{message}"):
        load(path)


def test_another_format_in_the_same_file_is_refused(kind, path):
    """The arrays of one format under the name of the other."""
    other = "tiled_csl" if kind.name == "bitmap" else "bitmap"
    rewrite(path, format=f"flash_llm.{other}", version=FORMATS[other].version)
    with pytest.raises(ValueError, match="words: it must have"):
        load(path)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.safetensors")


@pytest.mark.gpu
def test_to_a_gpu_and_back(weight, path):
    loaded = load(path, "cuda")
    assert loaded.data.is_cuda
    assert torch.equal(loaded.data.cpu(), weight.data)
    save(loaded, path)
    assert torch.equal(load(path).data, weight.data)
