"""Image classification, pixel by pixel: a user's CIFAR-10 in grey, or scikit-learn's digits as an offline stand-in."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from impl.sparse_training.tasks.dataset import Split

SIDE = 32
PADDED_LENGTH, CLASSES = SIDE * SIDE, 10
_GREY = np.array([0.2989, 0.5870, 0.1140])
_ALLOWED = {  # what numpy arrays in a pickle are made of
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    """A pickle may run any code; this one may only make arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        return super().find_class(module, name)


def load_cifar10(folder: Path) -> tuple[Split, Split]:
    """Train and test of `cifar-10-batches-py`: 1,024 grey values an image, .2989 R + .5870 G + .1140 B.

    Raises ValueError that names the file for one that is no such batch, or that is not only arrays.
    """
    train = [_cifar10_batch(folder / f"data_batch_{number}") for number in range(1, 6)]
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return _split(images, labels), _split(*_cifar10_batch(folder / "test_batch"))


def _cifar10_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        colours = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, PADDED_LENGTH)
        labels = np.asarray(content[b"labels"], np.int64)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; expected the folder cifar-10-batches-py") from None
    except Exception as error:
        raise ValueError(f"{path} is no CIFAR-10 batch: {error}") from None
    if len(labels) != len(colours) or not np.isin(labels, np.arange(CLASSES)).all():
        raise ValueError(f"{path}: {len(colours)} images, {len(labels)} labels; labels must be 0 to {CLASSES - 1}")
    return np.round(np.einsum("ncp,c->np", colours, _GREY)).astype(np.uint8), labels


def digits() -> Split:
    """The 1,797 handwritten digits that scikit-learn ships, 8 x 8 enlarged to 32 x 32, in a fixed shuffled order.

    Raises ImportError, with what to install, without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("the digits are scikit-learn's: pip install scikit-learn") from None
    loaded = load_digits()
    images = np.kron(np.round(loaded.images * (255 / 16)), np.ones((1, SIDE // 8, SIDE // 8)))
    order = np.argsort(np.random.PCG64(0).random_raw(len(images)), kind="stable")  # neighbours are one writer's
    return _split(images.reshape(-1, PADDED_LENGTH).astype(np.uint8)[order], loaded.target.astype(np.int64)[order])


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    return Split(images, np.full(len(labels), PADDED_LENGTH, np.int32), labels)
