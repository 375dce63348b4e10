"""Where the elements of mma operands lie in the registers of a warp (PTX ISA, "Matrix Fragments for mma").

Each function gives, for lane and element, the indices of a matrix [..., rows, columns] as integer arrays [32,
elements]; m8n8k4 has one matrix for each quad-pair, which the first index picks.
"""

from __future__ import annotations

import numpy as np

_LANE = np.arange(32)[:, None]
_PAIR, _MEMBER = _LANE // 4 % 4, _LANE % 4 + _LANE // 16 * 4  # quad-pair, and the lane's place there

Places = tuple[np.ndarray, ...]


def m8n8k4_a(layout: str) -> Places:
    """A [quad-pair, m, k], "row" or "col" major."""
    v = np.arange(4)[None]
    if layout == "row":
        return np.broadcast_arrays(_PAIR, _MEMBER, v)
    return np.broadcast_arrays(_PAIR, _MEMBER // 4 * 4 + v, _MEMBER % 4)


def m8n8k4_b(layout: str) -> Places:
    """B [quad-pair, k, n]: laid out as the transposed A of the other order."""
    pair, n, k = m8n8k4_a("row" if layout == "col" else "col")
    return pair, k, n


def m8n8k4_d(fp32: bool) -> Places:
    """C and D [quad-pair, m, n]."""
    v = np.arange(8)[None]
    if not fp32:
        return np.broadcast_arrays(_PAIR, _MEMBER, v)
    m = _LANE % 2 + (v & 2) + _LANE // 16 * 4
    n = (_LANE & 2) + (v & 1) + (v & 4)
    return np.broadcast_arrays(_PAIR, m, n)


def m16n8_a(k: int) -> Places:
    """A [m, k] of m16n8k8 and m16n8k16: pairs along k; then 8 rows down; then 8 columns on."""
    v = np.arange(k // 2)[None]
    return np.broadcast_arrays(_LANE // 4 + v // 2 % 2 * 8, _LANE % 4 * 2 + v % 2 + v // 4 * 8)


def m16n8_b(k: int) -> Places:
    """B [k, n]."""
    v = np.arange(k // 4)[None]
    return np.broadcast_arrays(_LANE % 4 * 2 + v % 2 + v // 2 * 8, _LANE // 4)


def m16n8_d() -> Places:
    """C and D [m, n]."""
    v = np.arange(4)[None]
    return np.broadcast_arrays(_LANE // 4 + v // 2 * 8, _LANE % 4 * 2 + v % 2)
