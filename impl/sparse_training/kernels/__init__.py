"""Kernels of block-sparse attention."""

from __future__ import annotations

from impl.sparse_training.kernels import attention_map, map_statistics, sm70, sm80, sm90

KERNELS = sm70.ALL + sm80.ALL + sm90.ALL + attention_map.ALL + (map_statistics.KERNEL,)
