"""Byte-level text: a user's IMDB and AAN, or Python's standard library as an offline stand-in.

A token is a byte; 0, which no text holds, is padding.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from impl.sparse_training.tasks.dataset import Split, pad_rows

IMDB_LENGTH, IMDB_CLASSES = 4096, 2
AAN_LENGTH, AAN_CLASSES = 4096, 2
CHUNK = 1024  # bytes of a stand-in's text
MODULES = 10  # the largest of the standard library


def load_imdb(folder: Path) -> Split:
    """`pos/*.txt` and `neg/*.txt` of `aclImdb/train` or `/test`, label 1 for pos; empty files are skipped and counted.

    Raises ValueError that names the folder when one is missing or holds no text.
    """
    rows, labels, skipped = [], [], 0
    for label, name in enumerate(("neg", "pos")):
        paths = sorted((folder / name).glob("*.txt"))
        if not paths:
            raise ValueError(f"{folder / name} holds no .txt; expected aclImdb/train or aclImdb/test")
        for path in paths:
            row = _bytes(path.read_bytes())
            skipped += len(row) == 0
            if len(row):
                rows.append(row)
                labels.append(label)
    return Split(*pad_rows(rows, IMDB_LENGTH), np.array(labels, np.int64), skipped)


def load_aan(path: Path) -> Split:
    """`new_aan_pairs.<split>.tsv`: label, id1, id2, text1, text2. Raises ValueError that names the line."""
    texts, labels = [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 5 or fields[0] not in ("0", "0.0", "1", "1.0"):
                raise ValueError(f"{path}, line {number}: expected label, id1, id2, text1, text2 with label 0 or 1")
            texts += [_bytes(field.encode()) for field in fields[3:]]
            labels.append(int(float(fields[0])))
    tokens, lengths = pad_rows(texts, AAN_LENGTH)
    return Split(tokens.reshape(-1, 2, AAN_LENGTH), lengths.reshape(-1, 2), np.array(labels, np.int64))


def which_module() -> Split:
    """Chunks of the `MODULES` largest modules of the standard library: which one is it from?

    The order is fixed and shuffled; the text is that of the running Python.
    """
    chunks = [(label, chunk) for label, name in enumerate(_largest_modules()) for chunk in _chunks(name)]
    order = _shuffled(len(chunks))
    tokens, lengths = pad_rows([chunks[place][1] for place in order], CHUNK)
    return Split(tokens, lengths, np.array([chunks[place][0] for place in order], np.int64))


def same_module() -> Split:
    """Pairs of such chunks: are the two from one module? Half of them are. A chunk is in one pair, so that no split has
    a chunk of another's."""
    by_module = [list(_chunks(path)) for path in _largest_modules()]
    pairs, labels = [], []
    for chunks, others in zip(by_module, [*by_module[1:], by_module[0]], strict=True):
        for place in range(0, min(len(chunks), len(others)) - 3, 4):  # the fourth: of the module before
            pairs += [*chunks[place : place + 2], chunks[place + 2], others[place + 3]]
            labels += [1, 0]
    tokens, lengths = pad_rows(pairs, CHUNK)
    order = _shuffled(len(labels))
    return Split(tokens.reshape(-1, 2, CHUNK)[order], lengths.reshape(-1, 2)[order], np.array(labels, np.int64)[order])


def _largest_modules() -> list[Path]:
    paths = Path(sysconfig.get_paths()["stdlib"]).glob("*.py")
    return sorted(paths, key=lambda path: (-path.stat().st_size, path.name))[:MODULES]


def _chunks(path: Path) -> Iterator[np.ndarray]:
    text = _bytes(path.read_bytes())
    for first in range(0, len(text) - CHUNK + 1, CHUNK):
        yield text[first : first + CHUNK]


def _bytes(text: bytes) -> np.ndarray:
    row = np.frombuffer(text, np.uint8)
    return row[row != 0]


def _shuffled(count: int) -> np.ndarray:
    return np.argsort(np.random.PCG64(0).random_raw(count), kind="stable")
