"""Kernels of Flash-LLM: `tiled_csl` multiplies by a weight in Tiled-CSL (sm_80), and sums split-K parts."""

from __future__ import annotations

from impl.flash_llm.kernels import tiled_csl

KERNELS = (*tiled_csl.SPMM.values(), tiled_csl.REDUCE)
