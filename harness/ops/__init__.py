"""The ops, by name."""

from __future__ import annotations

from harness.ops.attention import Attention
from harness.ops.base import Op
from harness.ops.block_sparse_attention import BlockSparseAttention
from harness.ops.decode_step import DecodeStep
from harness.ops.sparse_training_step import SparseTrainingStep
from harness.ops.spmm import SpMM
from harness.ops.training_step import TrainingStep

OPS: dict[str, Op] = {
    op.name: op
    for op in (Attention(), BlockSparseAttention(), SpMM(), TrainingStep(), SparseTrainingStep(), DecodeStep())
}
