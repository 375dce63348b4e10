"""Cases that every contender is tried on, and one way to send a contender through the gate."""

from __future__ import annotations

import functools
from typing import Any

from harness.contender import Contender, Prepared, Target
from harness.ops import OPS
from harness.ops.base import Tensors
from harness.verify import Gate, Verdict, check_exact, poison_allocator, poisoned_call

ATTENTION_SHAPES = [
    {"batch": 2, "num_heads": 3, "seqlen": 65, "head_dim": 40},
    {"batch": 2, "num_heads": 3, "seqlen": 129, "head_dim": 64, "causal": True},
    {"batch": 1, "num_heads": 4, "num_heads_kv": 2, "seqlen": 200, "head_dim": 128, "causal": True},
    {"batch": 2, "num_heads": 2, "seqlen_q": 33, "seqlen_k": 70, "head_dim": 64, "causal": True},
    {"batch": 2, "num_heads": 2, "seqlen_q": 70, "seqlen_k": 33, "head_dim": 64, "causal": True},
    {"batch": 1, "num_heads": 2, "seqlen": 31, "head_dim": 111},
    {"batch": 1, "num_heads": 1, "seqlen": 1, "head_dim": 16},
    {"batch": 1, "num_heads": 2, "seqlen": 129, "head_dim": 128, "causal": True, "dtype": "bfloat16"},
]
BLOCK_SPARSE_SHAPES = [
    {"batch": 2, "num_heads": 3, "seqlen": 137, "head_dim": 32, "block": 32, "density": 0.3},
    {"batch": 1, "num_heads": 2, "seqlen": 512, "head_dim": 64, "block": 128, "density": 0.25},
    {
        "batch": 1,
        "num_heads": 4,
        "num_heads_kv": 2,
        "seqlen": 200,
        "head_dim": 64,
        "block": 64,
        "density": 0.5,
        "causal": True,
    },
    {
        "batch": 1,
        "num_heads": 2,
        "seqlen": 256,
        "head_dim": 32,
        "block": 32,
        "density": 0.2,
        "softmax": "pruned_as_zero",
    },
    {"batch": 1, "num_heads": 2, "seqlen": 300, "head_dim": 64, "block": 64, "density": 0.4, "pattern": "window"},
]
SPMM_SHAPES = [
    {"m": 127, "k": 65, "n": 3, "sparsity": 0.8},
    {"m": 384, "k": 640, "n": 33, "sparsity": 0.5},
    {"m": 128, "k": 128, "n": 16, "sparsity": 0.5, "pattern": "2:4"},
    {"m": 64, "k": 96, "n": 8, "sparsity": 1.0},
    {"m": 256, "k": 64, "n": 8, "sparsity": 0.0},
]
TRAINING_SHAPES = [
    {"model": "tiny_encoder", "batch": 2, "seqlen": 37},
    {"model": "tiny_decoder", "batch": 1, "seqlen": 70},
    {"model": "tiny_decoder", "batch": 2, "seqlen": 65, "dtype": "bfloat16"},
]
SPARSE_STEP_SHAPES = [
    {"batch": 2, "seqlen": 70, "block": 32, "density": 0.5, "layers": 1},
    {"batch": 1, "seqlen": 33, "block": 64, "density": 1.0, "layers": 2},
]
DECODE_SHAPES = [
    {"model": "tiny_opt", "batch": 3, "prompt": 5, "new_tokens": 8, "sparsity": 0.8},
    {"model": "tiny_opt", "batch": 1, "prompt": 1, "new_tokens": 36, "sparsity": 0.5},
]
DIRECTIONS = ({"direction": "forward"}, {"direction": "backward"})
CASES: dict[str, list[dict[str, Any]]] = {
    "attention": [{**shape, **d} for shape in ATTENTION_SHAPES for d in DIRECTIONS],
    "block_sparse_attention": [{**shape, **d} for shape in BLOCK_SPARSE_SHAPES for d in DIRECTIONS],
    "spmm": SPMM_SHAPES,
    "training_step": TRAINING_SHAPES,
    "sparse_training_step": SPARSE_STEP_SHAPES,
    "decode_step": DECODE_SHAPES,
}
CPU = Target("cpu", "a CPU")


@functools.cache
def inputs_of(op: str, params: Any, device: str) -> Tensors:
    return OPS[op].inputs(params, device)


@functools.cache
def _gate_of(op: str, params: Any, reference_params: Any, contender: Contender | None, device: str) -> Gate:
    inputs = inputs_of(op, params, device)
    if contender is not None:
        _, inputs = contender.reference_case(params, inputs)
    return Gate(OPS[op], reference_params, inputs)


def gate_for(contender: Contender, params: Any, device: str) -> Gate:
    """The gate of a case, shared by the contenders that are checked against the case itself."""
    inputs = inputs_of(contender.op, params, device)
    reference_params, reference_inputs = contender.reference_case(params, inputs)
    own = None if reference_inputs is inputs else contender
    return _gate_of(contender.op, params, reference_params, own, device)


def judge(contender: Contender, params: Any, prepared: Prepared, outputs: Tensors, device: str) -> Verdict:
    if prepared.expected is not None:
        return check_exact(outputs, prepared.expected)
    return gate_for(contender, params, device).check(outputs)


def through_the_gate(contender: Contender, params: Any, target: Target) -> tuple[Prepared, Verdict]:
    """Prepare, and check outputs whose memory was NaN before."""
    inputs = inputs_of(contender.op, params, target.device)
    prepared = contender.prepare(params, inputs, target)
    if prepared.expected is None:
        gate = gate_for(contender, params, target.device)
        poison_allocator(gate.shapes().values(), gate.dtype, target.device)
    return prepared, judge(contender, params, prepared, poisoned_call(prepared.run), target.device)
