"""SAT's block-sparse attention as a contender."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.contender import Contender, Prepared, Target
from harness.lazy import lazy_import
from harness.method_step import MethodStep
from harness.ops.base import Tensors
from harness.ops.block_sparse_attention import BlockSparseParams
from harness.ops.calls import attention_call
from harness.ops.sparse_training_step import SparseTrainingStepParams
from impl.cuda import GPU_SOURCES

if TYPE_CHECKING:
    from impl.cuda.build import Kernel
    from impl.cuda.steps import Launch
    from impl.sparse_training.block_pattern import BlockPattern
    from impl.sparse_training.methods.base import Attention

torch = lazy_import("torch")

_SOURCE = "Yoon et al., IEEE Access 12, 2024, doi 10.1109/ACCESS.2024.3425638"


def _kernel_call(
    params: BlockSparseParams, inputs: Tensors, pattern: BlockPattern, launch: Launch
) -> Callable[[], Tensors]:
    """As `attention_call`, but the kernels alone, each run by `launch`."""
    from impl.sparse_training.kernels import attention

    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    options = {"block": params.block, "causal": params.causal, "launch": launch}
    forward = functools.partial(attention.forward, q, k, v, pattern.rows, None, softmax=params.softmax, **options)
    if "dout" not in inputs:
        return lambda: {"out": forward()[0]}
    saved = (*forward(), pattern.rows, pattern.columns, None)
    backward = functools.partial(attention.backward, inputs["dout"], q, k, v, *saved, **options)
    return lambda: dict(zip(("dq", "dk", "dv"), backward(), strict=True))


class SatBlockSparse(Contender):
    """Both softmax semantics, shared or per-head patterns, any length, grouped heads. Emulated on a CPU."""

    name = "sat_block_sparse"
    op = "block_sparse_attention"
    role = "ours"
    label = "SAT (ours)"
    summary = "our block-sparse attention after SAT; making the pattern's lists is set-up"
    source = _SOURCE
    sources = (
        *("impl/sparse_training/api.py", "impl/sparse_training/block_pattern.py", "impl/sparse_training/kernels"),
        *("impl/sparse_training/reference.py", *GPU_SOURCES, "harness/ops/calls.py"),
    )

    def unsupported(self, params: BlockSparseParams, target: Target) -> str | None:
        if params.dtype == "float32":
            return "takes float16 or bfloat16, not float32"
        return f"head_dim is at most 128, not {params.head_dim}" if params.head_dim > 128 else None

    def prepare(self, params: BlockSparseParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.cuda.backend import kernel_fields
        from impl.sparse_training.api import block_sparse_attention
        from impl.sparse_training.block_pattern import BlockPattern

        pattern = BlockPattern.of(inputs["pattern"], params.block)
        kernels: list[Kernel] = []
        call = _kernel_call(params, inputs, pattern, lambda kernel, *_: kernels.append(kernel))
        kernels.clear()  # the forward whose backward it is
        call()
        fields = kernel_fields(kernels, inputs["q"].device)
        if fields["backend"] != "reference":
            fields["tuning"] = {"kernel": " + ".join(kernel.name for kernel in kernels)}
        if fields["backend"] == "emulated":
            run = _kernel_call(params, inputs, pattern, emulator.launch)
        else:
            options = {"pattern": pattern, "causal": params.causal, "softmax": params.softmax}
            run = attention_call(functools.partial(block_sparse_attention, **options), inputs)
        return Prepared(run, variant=params.softmax, **fields)


class SatStep(MethodStep):
    """The sparse phase, over the case's pattern. A CPU runs the reference: a step's kernels emulate for too long."""

    method, role, source = "sat", "ours", _SOURCE
    sources = SatBlockSparse.sources

    def fields(self, params: SparseTrainingStepParams, inputs: Tensors, target: Target) -> dict[str, Any]:
        from impl.cuda.backend import kernel_fields
        from impl.sparse_training.block_pattern import BlockPattern

        if not target.is_cuda:
            return {"backend": "reference", "note": "the plain-torch reference: a step's kernels emulate for too long"}
        layer = params.attention("backward").model_copy(update={"batch": 1})
        shape = (1, layer.num_heads, layer.seqlen_q, layer.head_dim)
        some = torch.zeros(shape, dtype=torch.float16, device=target.device)
        kernels: list[Kernel] = []
        tensors = dict.fromkeys(("q", "k", "v", "dout"), some)
        pattern = BlockPattern.of(inputs["pattern"], params.block)
        _kernel_call(layer, tensors, pattern, lambda kernel, *_: kernels.append(kernel))()
        return {**kernel_fields(kernels, some.device), "variant": layer.softmax}


class SatDensePhaseStep(MethodStep):
    """The dense phase: fused attention, and on every step the exact maps, the learned pattern and the test."""

    method, computes, role, source = "sat", "dense", "ours", _SOURCE
    name, label = "sat_dense_phase", "SAT, dense phase, watched"
    sources = SatBlockSparse.sources
    dense_phase = watched = True

    def monitor(
        self, params: SparseTrainingStepParams, attentions: list[Attention], target: Target
    ) -> Callable[[], object]:
        from impl.sparse_training.pattern import LearnedPattern, TransitionMonitor, pattern_loss

        patterns = torch.nn.ModuleList(LearnedPattern(params.recipe.blocks) for _ in attentions).to(target.device)
        options = {"lr": 0.0, "fused": True, "capturable": target.is_cuda}
        optimizer = torch.optim.AdamW(patterns.parameters(), **options)
        monitor = TransitionMonitor(params.layers, params.seqlen).to(target.device)

        def look() -> None:
            maps = torch.stack([attention.map for attention in attentions])
            pattern_loss(patterns, maps, params.block).backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor(maps)

        return look

    def fields(self, params: SparseTrainingStepParams, inputs: Tensors, target: Target) -> dict[str, Any]:
        return {"backend": "kernel" if target.is_cuda else "reference"}
