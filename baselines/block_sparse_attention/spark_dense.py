"""Our dense attention beside the block-sparse contenders: what their efficiency is taken against."""

from __future__ import annotations

from baselines.block_sparse_attention.sdpa_dense import DenseYardstick
from impl.spark_attention.contender import SparkAttention


class SparkAttentionDense(DenseYardstick, SparkAttention):
    """SparkAttention, all blocks."""

    name = "spark_attention_dense"
    label = "Dense SparkAttention (ours)"
    summary = "our dense attention, all blocks: the yardstick of efficiency"
    sources = (*SparkAttention.sources, "impl/spark_attention/contender.py", *DenseYardstick.sources)
