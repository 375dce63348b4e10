"""Pathfinder, 32 x 32, hard: do two markers lie on one dashed contour? (Linsley et al. 2018; sizes of LRA).

Contours grow dash by dash for a batch of images at once; an image where one finds no room is dropped. Angles are
whole steps of a rounded table and the rest is single IEEE operations, so that a seed gives the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from impl.sparse_training.tasks.dataset import Split

SIDE = 32
PADDED_LENGTH, CLASSES = SIDE * SIDE, 2
CONTOUR, DISTRACTORS, DISTRACTOR = 14, 5, 4  # dashes of a contour, distractors, dashes of one
DASH, THICKNESS, SPACING = 2.0, 0.5, 2.75  # length, width and distance of dashes, pixels
SEED_DISTANCE = 7.0
MARKER_RADIUS = 1.5
MARGIN = 1.5  # of dash centres from the border
CLEARANCE = 2.25  # between the centres of dashes that are not neighbours
_STEPS = 64  # directions
_TURN = 8  # at most so many steps from dash to dash
_TRIALS = 12  # directions tried for a dash; those with room for one more come first
_AHEAD = 3.0  # margin of the dash after it
_ATTEMPTS = 24
_BATCH = 512
_ANGLES = np.arange(_STEPS) * (2 * np.pi / _STEPS)
_DIRECTION = np.round(np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1) * 2**16) / 2**16


def generate(count: int, seed: int) -> Split:
    """`count` images as uint8 grey values, row by row, labels 1 and 0 in turn; the same bytes for a seed everywhere."""
    bits = np.random.PCG64(seed)
    of_label: tuple[list[np.ndarray], ...] = ([], [])
    while min(map(len, of_label)) < (count + 1) // 2:
        label = np.arange(_BATCH) % 2
        images, label = _draw(bits, label)
        for value, kept in enumerate(of_label):
            kept += list(images[label == value])
    turns = np.arange(count) % 2 ^ 1
    tokens = np.stack([of_label[label][place // 2] for place, label in enumerate(turns)])
    return Split(tokens, np.full(count, PADDED_LENGTH, np.int32), turns.astype(np.int64))


class _Canvas:
    """The dashes of a batch of images so far: centres [batch, dashes, 2], headings [batch, dashes]."""

    def __init__(self, bits: np.random.PCG64, batch: int):
        self._bits = bits
        self.centres = np.zeros((batch, 0, 2))
        self.headings = np.zeros((batch, 0), np.int64)
        self.good = np.ones(batch, bool)

    def random(self, below: int, *shape: int) -> np.ndarray:
        raw = self._bits.random_raw(int(np.prod(shape)))
        return ((raw >> np.uint64(40)).astype(np.int64) * below >> 24).reshape(shape)

    def anywhere(self, images: int) -> np.ndarray:
        """A point for each image, in steps of 1/256 pixel."""
        return (self.random(SIDE * 256, images, 2) + 0.5) / 256

    def grow(self, dashes: int, start: Callable[[np.ndarray], np.ndarray]) -> None:
        """A contour in each image, from `start(images)`; an image where it finds no room is not good."""
        centres = np.zeros((len(self.good), dashes, 2))
        headings = np.zeros((len(self.good), dashes), np.int64)
        left = np.flatnonzero(self.good)
        for _ in range(_ATTEMPTS):
            centres[left], headings[left], found = self._walk(dashes, start(left), self.centres[left])
            left = left[~found]
        self.good[left] = False
        self.centres = np.concatenate([self.centres, centres], 1)
        self.headings = np.concatenate([self.headings, headings], 1)

    def _walk(self, dashes: int, start: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Centres and headings of one attempt in some images, and where it found room."""
        images = np.arange(len(start))
        centres, headings = np.zeros((len(start), dashes, 2)), np.zeros((len(start), dashes), np.int64)
        found = np.ones(len(start), bool)
        trials, turned = start[:, None], self.random(_STEPS, len(start), 1)
        for dash in range(dashes):
            if dash:
                turn = self.random(_TURN + 1, len(start), _TRIALS) - self.random(_TURN + 1, len(start), _TRIALS)
                turned = (headings[:, dash - 1, None] + turn) % _STEPS
                between = _DIRECTION[headings[:, dash - 1, None]] + _DIRECTION[turned]
                trials = centres[:, dash - 1, None] + between * (SPACING / 2)
            far = np.concatenate([others, centres[:, : max(0, dash - 1)]], 1)
            room = _inside(trials, MARGIN) & _clear(trials, far)
            ahead = trials + SPACING * _DIRECTION[turned]
            promising = room & _inside(ahead, _AHEAD) & _clear(ahead, far)
            best = (room.astype(np.int8) + promising).argmax(1)
            found &= room.any(1)
            centres[:, dash], headings[:, dash] = trials[images, best], turned[images, best]
        return centres, headings, found


def _inside(points: np.ndarray, margin: float) -> np.ndarray:
    return np.abs(points - SIDE / 2).max(-1) < SIDE / 2 - margin


def _clear(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether points [images, trials, 2] keep their distance from others [images, dashes, 2]."""
    x, y = (others[..., axis].T.copy() for axis in range(2))  # rows of images: numpy's inner loops are then long
    own_x, own_y = (np.ascontiguousarray(points[..., axis].T) for axis in range(2))
    clear = np.ones(own_x.shape, bool)
    for other_x, other_y in zip(x, y, strict=True):
        dx, dy = own_x - other_x, own_y - other_y
        dx *= dx
        dy *= dy
        dx += dy
        clear &= dx > CLEARANCE**2
    return clear.T


def _draw(bits: np.random.PCG64, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images [good, 1024] and their labels."""
    canvas = _Canvas(bits, len(label))

    def beside(images: np.ndarray) -> np.ndarray:
        return canvas.centres[images, 0] + SEED_DISTANCE * _DIRECTION[canvas.random(_STEPS, len(images))]

    def anywhere(images: np.ndarray) -> np.ndarray:
        return canvas.anywhere(len(images))

    for dashes, start in ((CONTOUR, anywhere), (CONTOUR, beside), *((DISTRACTOR, anywhere),) * DISTRACTORS):
        canvas.grow(dashes, start)
    last = np.where(label == 1, CONTOUR - 1, 2 * CONTOUR - 1)
    ends = np.stack([canvas.centres[:, 0], canvas.centres[np.arange(len(label)), last]], 1)
    good = canvas.good
    return _render(canvas.centres[good], canvas.headings[good], ends[good]), label[good]


def _render(centres: np.ndarray, headings: np.ndarray, markers: np.ndarray) -> np.ndarray:
    """Grey values by the distance of each pixel from dashes and markers, the edges one pixel soft."""
    axis = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    x, y = np.tile(axis, SIDE), np.repeat(axis, SIDE)
    centres, markers = centres.astype(np.float32)[..., None], markers.astype(np.float32)[..., None]
    direction = _DIRECTION[headings].astype(np.float32)[..., None]

    def squared(points: np.ndarray, index: int, heading: np.ndarray | None = None) -> np.ndarray:
        dx, dy = x - points[:, index, 0], y - points[:, index, 1]
        if heading is not None:
            along = np.clip(dx * heading[:, 0] + dy * heading[:, 1], -DASH / 2, DASH / 2)
            dx, dy = dx - along * heading[:, 0], dy - along * heading[:, 1]
        return dx * dx + dy * dy

    dashes = squared(centres, 0, direction[:, 0])
    for dash in range(1, centres.shape[1]):
        np.minimum(dashes, squared(centres, dash, direction[:, dash]), out=dashes)
    discs = np.minimum(squared(markers, 0), squared(markers, 1))
    distance = np.minimum(np.sqrt(dashes) - np.float32(THICKNESS / 2), np.sqrt(discs) - np.float32(MARKER_RADIUS))
    return np.round(255 * np.clip(np.float32(0.5) - distance, 0, 1)).astype(np.uint8)


def load(folder: Path) -> Split:
    """A user's `pathfinder32/curv_contour_length_14`: imgs/<b>/sample_<i>.png and metadata/<b>.npy, label in column 3.

    Empty image files are skipped and counted. Raises ValueError that names the file for another size or label.
    """
    from PIL import Image

    images, labels, skipped = [], [], 0
    listings = [path for path in (folder / "metadata").glob("*.npy") if path.stem.isdecimal()]
    if not listings:
        raise ValueError(f"{folder / 'metadata'} holds no <number>.npy; is it pathfinder32/curv_contour_length_14?")
    for listing in sorted(listings, key=lambda path: int(path.stem)):
        for name, label in _samples(listing):
            path = folder / "imgs" / listing.stem / name
            if path.stat().st_size == 0:
                skipped += 1
                continue
            with Image.open(path) as image:
                if image.size != (SIDE, SIDE):
                    raise ValueError(f"{path} is {image.size[0]} x {image.size[1]}, not {SIDE} x {SIDE}")
                images.append(np.asarray(image.convert("L")).reshape(-1))
            labels.append(label)
    tokens = np.stack(images) if images else np.zeros((0, PADDED_LENGTH), np.uint8)
    return Split(tokens, np.full(len(labels), PADDED_LENGTH, np.int32), np.array(labels, np.int64), skipped)


def _samples(listing: Path) -> Iterator[tuple[str, int]]:
    """File name and label of each image. The published listings are text in spite of their suffix: a line for an image,
    its fields apart by spaces; arrays of strings are taken too."""
    is_array = listing.read_bytes().startswith(b"\x93NUMPY")
    lines = np.load(listing, allow_pickle=False).tolist() if is_array else listing.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        fields = [str(field) for field in line] if is_array else line.split()
        if len(fields) < 4 or fields[3] not in ("0", "1"):
            raise ValueError(f"{listing}, line {number}: expected folder, file, number, label with label 0 or 1")
        yield fields[1], int(fields[3])
