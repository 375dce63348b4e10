"""ListOps: nested MIN, MAX, MED and SM over digits, to be evaluated (Nangia and Bowman 2018; lengths of LRA).

Trees are drawn level by level for thousands of samples at once. The children of a node stand side by side in the next
level, so values are reduced upwards and positions spread downwards without a loop over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from impl.sparse_training.tasks.dataset import Split, pad_rows

MIN_LENGTH, MAX_LENGTH = 500, 2000  # both excluded
MAX_DEPTH, MAX_ARGUMENTS = 10, 10
WORDS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
PADDED_LENGTH, CLASSES = 2048, 10
_FIRST_OPERATOR, _CLOSE = WORDS.index("[MIN"), WORDS.index("]")
_MIN, _MAX, _MED, _SUM = range(4)
_BATCH = 4096  # trees drawn at once


@dataclass
class _Level:
    """The nodes at one depth of many trees; those of a tree, and those of a parent, stand side by side."""

    tree: np.ndarray  # of each node
    operator: np.ndarray  # 0 to 3, or -1 for a digit
    digit: np.ndarray
    arguments: np.ndarray  # number of children

    def keep(self, trees: np.ndarray) -> _Level:
        """Only the nodes of `trees` (a mask over trees), which are numbered anew."""
        kept, number = trees[self.tree], np.cumsum(trees) - 1
        return _Level(number[self.tree[kept]], self.operator[kept], self.digit[kept], self.arguments[kept])

    @property
    def parents(self) -> np.ndarray:
        return np.flatnonzero(self.operator >= 0)


def generate(count: int, seed: int) -> Split:
    """`count` samples without duplicates, the same bytes for a seed on every machine.

    Only the raw output of PCG64 is used, which numpy keeps stable. An operator has 2 to 10 arguments, each a digit
    with probability 3/4, or at depth 10 always.
    """
    bits = np.random.PCG64(seed)
    seen: dict[bytes, int] = {}
    while len(seen) < count:
        for row, label in zip(*_draw(bits), strict=True):
            seen.setdefault(row.tobytes(), int(label))
    rows = [np.frombuffer(row, np.uint8) for row in list(seen)[:count]]
    return Split(*pad_rows(rows, PADDED_LENGTH), np.array(list(seen.values())[:count], np.int64))


def _draw(bits: np.random.PCG64) -> tuple[list[np.ndarray], np.ndarray]:
    """Tokens and labels of those of `_BATCH` trees that have an accepted length."""
    # A root that is a digit gives length 1, never accepted: all roots are operators.
    levels = [_nodes(bits, np.arange(_BATCH), operators=1.0)]
    for depth in range(2, MAX_DEPTH + 1):
        above = levels[-1]
        tree = np.repeat(above.tree, above.arguments)
        levels.append(_nodes(bits, tree, operators=0.25 if depth < MAX_DEPTH else 0.0))
        length = sum(np.bincount(level.tree, 1 + (level.operator >= 0), _BATCH) for level in levels)
        if (length >= MAX_LENGTH).all():
            break
    accepted = (length > MIN_LENGTH) & (length < MAX_LENGTH)
    levels = [level.keep(accepted) for level in levels]
    values, lengths = _evaluate(levels)
    return _write(levels, lengths, values[0])


def _nodes(bits: np.random.PCG64, tree: np.ndarray, operators: float) -> _Level:
    raw = bits.random_raw(len(tree))
    is_operator = (raw >> np.uint64(32)) < operators * 2**32
    uniform = (raw & np.uint64(0xFFFFFF)).astype(np.int64)  # 24 bits
    return _Level(
        tree,
        np.where(is_operator, uniform & 3, -1),
        uniform * 10 >> 24,
        np.where(is_operator, 2 + (uniform >> 2) * (MAX_ARGUMENTS - 1) // 2**22, 0),
    )


def _evaluate(levels: list[_Level]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Value, and length in tokens, of the subtree at each node, by level."""
    values, lengths = [level.digit.copy() for level in levels], [np.ones_like(level.digit) for level in levels]
    for depth in range(len(levels) - 2, -1, -1):
        level, parents = levels[depth], levels[depth].parents
        if len(parents) == 0:
            continue
        below, count = values[depth + 1], level.arguments[parents]
        first = np.cumsum(count) - count
        group = np.repeat(np.arange(len(parents)), count)
        ordered = below[np.lexsort((below, group))]
        median = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) // 2
        sums = np.add.reduceat(below, first) % 10
        by_operator = np.stack([ordered[first], ordered[first + count - 1], median, sums])  # _MIN, _MAX, _MED, _SUM
        values[depth][parents] = by_operator[level.operator[parents], np.arange(len(parents))]
        lengths[depth][parents] = 2 + np.add.reduceat(lengths[depth + 1], first)
    return values, lengths


def _write(levels: list[_Level], lengths: list[np.ndarray], labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Each tree in prefix order."""
    total = lengths[0]
    position = np.cumsum(total) - total
    start = position
    text = np.zeros(total.sum(), np.uint8)
    for depth, level in enumerate(levels):
        operator = level.operator >= 0
        text[position] = np.where(operator, _FIRST_OPERATOR + level.operator, 1 + level.digit)
        text[(position + lengths[depth] - 1)[operator]] = _CLOSE
        if depth + 1 < len(levels):
            parents = level.parents
            count, below = level.arguments[parents], lengths[depth + 1]
            before = np.cumsum(below) - below
            first = np.cumsum(count) - count
            position = np.repeat(position[parents] + 1 - before[first], count) + before
    return np.split(text, start[1:]), labels


def evaluate(tokens: np.ndarray) -> int:
    """The value of one tokenised sample, by a stack: the check of `generate` and of a user's files.

    tokens: uint8, places in WORDS without padding. Raises ValueError for an expression that is not one.
    """
    stack: list[list[int]] = [[]]
    operators: list[int] = []
    reduce = {_MIN: min, _MAX: max, _MED: lambda v: int(np.median(v)), _SUM: lambda v: sum(v) % 10}
    for token in tokens.tolist():
        if token == _CLOSE and operators and stack[-1]:
            value = reduce[operators.pop()](stack.pop())
            stack[-1].append(value)
        elif _FIRST_OPERATOR <= token < _CLOSE:
            operators.append(token - _FIRST_OPERATOR)
            stack.append([])
        elif 1 <= token < _FIRST_OPERATOR:
            stack[-1].append(token - 1)
        else:
            raise ValueError(f"{WORDS[token] if token < len(WORDS) else token} is out of place")
    if operators or len(stack[0]) != 1:
        raise ValueError("not one expression")
    return stack[0][0]


def load(path: Path) -> Split:
    """A file of LRA's layout (basic_train.tsv): a head line, then `Source<TAB>Target`; parentheses are dropped.

    Raises ValueError that names the line for an unknown word, a label that is not the value, or a length over 2,048.
    """
    place = {word: index for index, word in enumerate(WORDS) if index}
    rows, labels = [], []
    with path.open() as file:
        next(file, None)
        for number, line in enumerate(file, 2):
            try:
                source, tab, target = line.rstrip("\n").partition("\t")
                if not tab or not target.isdecimal():
                    raise ValueError("expected an expression, a tab and its value")
                row = np.array([place[word] for word in source.split() if word not in ("(", ")")], np.uint8)
                if len(row) > PADDED_LENGTH:
                    raise ValueError(f"{len(row)} tokens, at most {PADDED_LENGTH}")
                if evaluate(row) != int(target):
                    raise ValueError(f"the value is {evaluate(row)}, the label {target}")
            except (ValueError, KeyError) as error:
                reason = f"unknown word {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"{path}, line {number}: {reason}") from None
            rows.append(row)
            labels.append(int(target))
    return Split(*pad_rows(rows, PADDED_LENGTH), np.array(labels, np.int64))
