"""What a task's samples are, and what a loader says about them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """Samples of a split. A retrieval sample has two texts, any other one."""

    tokens: np.ndarray  # uint8 [samples, length] or [samples, 2, length]; 0 is padding
    lengths: np.ndarray  # int32 [samples] or [samples, 2]
    labels: np.ndarray  # int64 [samples]
    skipped: int = 0  # files of the source that were empty

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, places: np.ndarray) -> Split:
        return Split(self.tokens[places], self.lengths[places], self.labels[places], self.skipped)

    def describe(self, classes: int) -> dict[str, float | int]:
        """What a run's record keeps: sizes, label balance, lengths, duplicates, files skipped."""
        share = np.bincount(self.labels, minlength=classes) / max(1, len(self))
        return {
            "samples": len(self),
            "rarest_label": float(share.min()),
            "commonest_label": float(share.max()),
            "shortest": int(self.lengths.min()) if len(self) else 0,
            "longest": int(self.lengths.max(initial=0)),
            "duplicates": len(self) - len(self.digests()),
            "skipped": self.skipped,
        }

    def digests(self) -> set[bytes]:
        """Of the samples, by which two are told apart: a split may have a gigabyte of tokens."""
        return {hashlib.blake2b(sample.tobytes(), digest_size=16).digest() for sample in self.tokens}


def pad_rows(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens as uint8 [rows, length], cut or padded with 0, and their lengths."""
    tokens = np.zeros((len(rows), length), np.uint8)
    lengths = np.array([min(len(row), length) for row in rows], np.int32)
    for row, padded, kept in zip(rows, tokens, lengths, strict=True):
        padded[:kept] = row[:kept]
    return tokens, lengths
