"""The paper's hyper-parameters by task, and where a task's samples come from."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.sparse_training.tasks import images, listops, pathfinder, texts
from impl.sparse_training.tasks.dataset import Split

WIDTH, HIDDEN, HEADS = 64, 128, 2  # of the model, in all tasks
BYTES = 256  # tokens of grey values and of text


@dataclass(frozen=True)
class Recipe:
    """One task of Yoon et al. 2024: sizes of the model, of the pattern and of the training."""

    task: str
    seqlen: int
    vocabulary: int
    classes: int
    layers: int
    block: int
    density: float
    flood_alpha: float  # SPION's quantile
    batch: int
    learning_rate: float
    warmup_steps: int
    steps: int
    pairs: bool = False
    keep_diagonal: bool = False  # in SAT's pattern, where the paper forces nothing

    @property
    def blocks(self) -> int:
        return -(-self.seqlen // self.block)


LISTOPS = Recipe("listops", 2048, len(listops.WORDS), 10, 4, 64, 0.04, 0.98, 128, 8e-4, 1000, 30_000)
PATHFINDER = Recipe("pathfinder", 1024, BYTES, 2, 2, 32, 0.05, 0.96, 512, 2e-3, 175, 10_000)
IMAGE = Recipe("image", 1024, BYTES, 10, 2, 32, 0.05, 0.96, 512, 2e-3, 175, 10_000)
TEXT = Recipe("text", 4096, BYTES, 2, 4, 32, 0.03, 0.99, 64, 7e-4, 80, 30_000)
RETRIEVAL = Recipe("retrieval", 4096, BYTES, 2, 2, 64, 0.021, 0.99, 32, 5e-4, 800, 40_000, pairs=True)
# Stand-ins with real data for machines without the downloads: their accuracies compare with each other alone.
DIGITS = Recipe("digits", 1024, BYTES, 10, 2, 32, 0.05, 0.96, 512, 2e-3, 175, 10_000)
MODULES = Recipe("modules", 1024, BYTES, texts.MODULES, 4, 32, 0.08, 0.96, 512, 9e-4, 80, 30_000)
MODULE_PAIRS = Recipe("module_pairs", 1024, BYTES, 2, 2, 32, 0.05, 0.96, 32, 5e-4, 800, 40_000, pairs=True)
RECIPES = {r.task: r for r in (LISTOPS, PATHFINDER, IMAGE, TEXT, RETRIEVAL, DIGITS, MODULES, MODULE_PAIRS)}


@dataclass(frozen=True)
class Data:
    """Three splits; without a sample in common, but for those that a user's files share."""

    train: Split
    dev: Split
    test: Split
    source: str  # "generated", "user's files" or "stand-in"

    @property
    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "dev": self.dev, "test": self.test}

    def describe(self, classes: int) -> dict[str, dict[str, float | int]]:
        """Of each split what `Split.describe` says, and `shared`: how many of its samples those before it have too."""
        said, before = {}, set[bytes]()
        for name, split in self.splits.items():
            digests = split.digests()
            said[name] = {**split.describe(classes), "shared": len(digests & before)}
            before |= digests
        return said


def split_sizes(samples: int) -> tuple[int, int, int]:
    """Of train, dev and test, 2 % each for the last two."""
    held_out = max(1, samples // 50)
    return samples - 2 * held_out, held_out, held_out


def refusal(task: str, batch: int | None, samples: int) -> str | None:
    """Why `task` cannot be trained without a user's files on that many generated samples, or None.

    How many samples a stand-in has only `load` tells.
    """
    if task in DOWNLOADS:
        return f"needs its download (--data FOLDER); the stand-in without one is {DOWNLOADS[task]}"
    batch, train = batch or RECIPES[task].batch, split_sizes(samples)[0]
    if task in _GENERATED and batch > train:
        return f"a batch of {batch} is more than the {train} training samples"
    return None


def source_of(task: str) -> str:
    """Of the samples that a task has without a user's files."""
    return "generated" if task in _GENERATED else "stand-in"


def load(task: str, folder: Path | None, cache: Path, sizes: tuple[int, int, int] = (96_000, 2_000, 2_000)) -> Data:
    """The samples of `task`. folder: a user's download, which image, text and retrieval need and no stand-in takes.

    Generated samples, as many as `sizes` (train, dev, test), are kept in `cache`, a folder. Raises ValueError that
    says what is missing or wrong, and where.
    """
    data = _load(task, folder, cache, sizes)
    place = "" if folder is None else f"{folder}: "
    for name, split in data.splits.items():
        if not len(split):
            raise ValueError(f"{place}the {name} split has no sample")
    for (name, split), (other, others) in itertools.combinations(data.splits.items(), 2):
        if np.array_equal(split.tokens, others.tokens):
            raise ValueError(f"{place}the {name} and {other} splits are the same samples")
    return data


def _load(task: str, folder: Path | None, cache: Path, sizes: tuple[int, int, int]) -> Data:
    if task in _GENERATED and folder is None:
        return _parts(_generated(task, sum(sizes), cache), sizes, source_of(task))
    if task in _STAND_INS:
        if folder is not None:
            raise ValueError(f"is a stand-in for a download, and takes no folder ({folder})")
        whole = _STAND_INS[task]()
        held_out = len(whole) // 10
        return _parts(whole, (len(whole) - 2 * held_out, held_out, held_out), source_of(task))
    if folder is None:
        raise ValueError(refusal(task, None, sum(sizes)))
    return _of_user(task, folder)


DOWNLOADS = {"image": "digits", "text": "modules", "retrieval": "module_pairs"}  # and their stand-ins
_GENERATED: dict[str, Callable[[int, int], Split]] = {"listops": listops.generate, "pathfinder": pathfinder.generate}
_STAND_INS: dict[str, Callable[[], Split]] = {
    "digits": images.digits,
    "modules": texts.which_module,
    "module_pairs": texts.same_module,
}
_SEED = 0  # of the generated samples; a run's seed does not change its data


def _generated(task: str, count: int, cache: Path) -> Split:
    path = cache / f"{task}-{count}-seed{_SEED}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Split(kept["tokens"], kept["lengths"], kept["labels"])
    except Exception:  # none yet, or one that is cut, of which numpy and zipfile raise many: make it anew
        pass
    split = _GENERATED[task](count, _SEED)
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f"{path.stem}.{os.getpid()}.npz"  # processes of one run may all come here
    np.savez_compressed(temporary, tokens=split.tokens, lengths=split.lengths, labels=split.labels)
    temporary.replace(path)
    return split


def _of_user(task: str, folder: Path) -> Data:
    source = "user's files"
    if task == "listops":
        return Data(*(listops.load(folder / f"basic_{name}.tsv") for name in ("train", "val", "test")), source)
    if task == "retrieval":
        return Data(
            *(texts.load_aan(folder / f"new_aan_pairs.{name}.tsv") for name in ("train", "eval", "test")), source
        )
    if task == "pathfinder":
        whole = pathfinder.load(folder)
        held_out = len(whole) // 10
        return _parts(whole, (len(whole) - 2 * held_out, held_out, held_out), source)
    if task == "image":
        train, test = images.load_cifar10(folder)
    else:
        train, test = texts.load_imdb(folder / "train"), texts.load_imdb(folder / "test")
    order = np.argsort(np.random.PCG64(0).random_raw(len(train)), kind="stable")  # IMDB's files come by label
    held_out = len(train) // 10
    return Data(train.take(order[held_out:]), train.take(order[:held_out]), test, source)


def _parts(whole: Split, sizes: tuple[int, int, int], source: str) -> Data:
    first, second = sizes[0], sizes[0] + sizes[1]
    places = np.arange(sum(sizes))
    return Data(*(whole.take(part) for part in np.split(places, [first, second])), source)
