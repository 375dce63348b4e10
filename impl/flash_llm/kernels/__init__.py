"""Kernels of Flash-LLM (sm_80): products by a weight in Tiled-CSL or as a bitmap, and the sum of split-K parts."""

from __future__ import annotations

from impl.flash_llm.kernels import bitmap, tiled_csl

KERNELS = (*tiled_csl.SPMM.values(), *bitmap.SPMM.values(), tiled_csl.REDUCE)
