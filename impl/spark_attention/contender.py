"""SparkAttention as contenders: the kernel for the GPU at hand, and the two Volta kernels by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contender import Prepared, Target
from harness.exchange import AttentionContender, TrainingStepContender
from harness.lazy import lazy_import
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import Forward, attention_call
from harness.ops.training_step import TrainingStepParams
from impl.cuda import GPU_SOURCES

if TYPE_CHECKING:
    from impl.cuda.build import Kernel
    from impl.cuda.steps import Launch

torch = lazy_import("torch")

VOLTA = (7, 0)
EMULATED_MMA = (
    "this GPU emulates mma.m8n8k4, the Volta kernel's instruction: its result is checked, its time means nothing"
)


def _kernel_call(inputs: Tensors, launch: Launch, arch: str, accumulate: str, causal: bool) -> Callable[[], Tensors]:
    """As `attention_call`, but the kernels alone, each run by `launch`."""
    from impl.spark_attention.kernels.backward import attention_backward
    from impl.spark_attention.kernels.forward import attention_forward

    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    options = {"launch": launch, "causal": causal, "softmax_scale": q.shape[-1] ** -0.5}
    forward = functools.partial(attention_forward, q, k, v, accumulate=accumulate, kernel_arch=arch, **options)
    if "dout" not in inputs:
        return lambda: {"out": forward()[0]}
    backward = functools.partial(attention_backward, inputs["dout"], q, k, v, *forward(), arch=arch, **options)
    return lambda: dict(zip(("dq", "dk", "dv"), backward(), strict=True))


def _kernels(inputs: Tensors, *options: Any) -> list[Kernel]:
    """The kernels that `_kernel_call` runs, in order."""
    kernels: list[Kernel] = []
    call = _kernel_call(inputs, lambda kernel, *_: kernels.append(kernel), *options)
    kernels.clear()  # the forward whose backward it is
    call()
    return kernels


def _fields(kernels: list[Kernel], target: Target) -> dict[str, Any]:
    """What `kernel_fields` says, with the kernels' names, and no times for a Volta kernel on another GPU."""
    from impl.cuda.backend import kernel_fields

    # The one that does the work first, which others may prepare and complete.
    by_work = sorted(kernels, key=lambda kernel: kernel.dynamic_shared_bytes, reverse=True)
    fields = kernel_fields(by_work, torch.device(target.device))
    if fields["backend"] != "reference":
        fields["tuning"] = {"kernel": " + ".join(kernel.name for kernel in kernels)}
    if target.capability > VOLTA and kernels[0].arch == "sm_70":
        fields["no_times"] = EMULATED_MMA
    return fields


class SparkAttention(AttentionContender):
    """The kernels written for the newest architecture that the GPU has the instructions of; emulated on a CPU."""

    name = "spark_attention"
    role = "ours"
    label = "SparkAttention (ours)"
    summary = "our fused attention after SparkAttention, on the kernels written for this GPU"
    source = "Xu et al., CCF Trans. HPC 7(1), 2025, doi 10.1007/s42514-024-00211-0"
    sources = ("impl/spark_attention", *GPU_SOURCES, "harness/ops/calls.py")

    kernel_arch: ClassVar[str | None] = None  # None: by the GPU
    accumulate: ClassVar[str] = "fp32"

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.dtype == "float32":
            return "takes float16 or bfloat16, not float32"
        if params.dtype == "bfloat16" and self.kernel_arch == "sm_70":
            return "the Volta kernel takes float16 only"
        if params.head_dim > 128:
            return f"head_dim is at most 128, not {params.head_dim}"
        if params.direction == "backward" and self.accumulate == "fp16":
            return "the fp16-accumulate variant is a forward; its backward is that of spark_attention_sm70"
        return None

    def function(self, params: AttentionParams, target: Target) -> Forward:
        from impl.spark_attention.api import spark_attention

        options = {"causal": params.causal, "accumulate": self.accumulate, "kernel_arch": self.kernel_arch}
        return functools.partial(spark_attention, **options)

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda import emulator
        from impl.spark_attention.kernels.forward import source_arch

        arch = self.kernel_arch or source_arch(inputs["q"].device)
        fields = _fields(_kernels(inputs, arch, self.accumulate, params.causal), target)
        if fields["backend"] == "emulated":
            run = _kernel_call(inputs, emulator.launch, arch, self.accumulate, params.causal)
        else:
            run = attention_call(self.function(params, target), inputs)
        variant = "fp16 accumulate" if self.accumulate == "fp16" else None
        return Prepared(run, variant=variant, **fields)


class SparkAttentionSm70(SparkAttention):
    """The Volta kernels on any GPU: on a newer one only their results are checked."""

    name = "spark_attention_sm70"
    label = "SparkAttention (Volta kernel)"
    summary = "the mma.m8n8k4 kernels; timed on a V100, checked on any GPU"
    kernel_arch = "sm_70"


class SparkAttentionSm80(SparkAttention):
    """The sm_80 kernels on newer GPUs too: what the throughput model is held against (docs/model.md)."""

    name = "spark_attention_sm80"
    label = "SparkAttention (sm_80 kernel)"
    summary = "the cp.async, ldmatrix, mma.m16n8k16 kernels on any GPU that has them"
    kernel_arch = "sm_80"

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if target.is_cuda and target.capability < (8, 0):
            return "the sm_80 kernels need compute capability 8.0 or newer; use spark_attention"
        return super().unsupported(params, target)


class SparkAttentionFp16Acc(SparkAttentionSm70):
    """The Volta kernel whose products accumulate in fp16: half the tensor instructions, a larger error."""

    name = "spark_attention_fp16acc"
    label = "SparkAttention (fp16 accumulate)"
    summary = "the mma.m8n8k4 kernel with fp16 accumulators; timed on a V100, checked on any GPU"
    accumulate = "fp16"


class SparkAttentionStep(TrainingStepContender):
    """A CPU runs the reference: the kernels of a step would be emulated for minutes."""

    attention = SparkAttention()

    def fields(self, params: TrainingStepParams, target: Target) -> dict[str, Any]:
        if not target.is_cuda:
            return {"backend": "reference", "note": "the plain-torch reference: a step's kernels emulate for too long"}
        from impl.spark_attention.kernels.forward import source_arch

        layer = params.attention("forward")
        options = {"dtype": getattr(torch, layer.dtype), "device": target.device}
        heads = torch.zeros(1, layer.seqlen_q, 3, layer.num_heads, layer.head_dim, **options)
        forward = dict(zip("qkv", heads.transpose(1, 3).unbind(2), strict=True))  # strided as the model's
        chosen = (source_arch(heads.device), SparkAttention.accumulate, layer.causal)
        kernels = [*_kernels(forward, *chosen), *_kernels({**forward, "dout": forward["q"]}, *chosen)]
        return _fields(kernels, target)
