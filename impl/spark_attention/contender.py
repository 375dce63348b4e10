"""SparkAttention as contenders: the kernel for the GPU at hand, and the two Volta kernels by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contender import Contender, Prepared, Target
from harness.ops.attention import AttentionParams
from harness.ops.base import Tensors
from harness.ops.calls import attention_call

if TYPE_CHECKING:
    from torch import Tensor

VOLTA = (7, 0)
EMULATED_MMA = (
    "this GPU emulates mma.m8n8k4, the Volta kernel's instruction: its result is checked, its time means nothing"
)


def _emulated_forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    from impl.cuda import emulator
    from impl.spark_attention.kernels.forward import attention_forward

    out, _ = attention_forward(q, k, v, emulator.launch, softmax_scale=q.shape[-1] ** -0.5, **options)
    return out


class SparkAttention(Contender):
    """The kernel written for the newest architecture that the GPU has the instructions of; emulated on a CPU."""

    name = "spark_attention"
    op = "attention"
    role = "ours"
    label = "SparkAttention (ours)"
    summary = "our fused attention after SparkAttention, on the kernel written for this GPU"
    source = "Xu et al., CCF Trans. HPC 7(1), 2025, doi 10.1007/s42514-024-00211-0"
    sources = ("impl/spark_attention", "impl/cuda", "harness/ops/calls.py")

    kernel_arch: ClassVar[str | None] = None  # None: by the GPU
    accumulate: ClassVar[str] = "fp32"

    def unsupported(self, params: AttentionParams, target: Target) -> str | None:
        if params.dtype == "float32":
            return "takes float16 or bfloat16, not float32"
        if params.dtype == "bfloat16" and (self.kernel_arch or self.accumulate == "fp16"):
            return "the Volta kernel takes float16 only"
        if params.head_dim > 128:
            return f"head_dim is at most 128, not {params.head_dim}"
        if params.direction == "backward":
            if target.is_cuda:
                return "there is no backward kernel yet; its backward runs on the CPU only"
            if self.accumulate == "fp16":
                return "the fp16-accumulate variant is a forward; its backward is that of spark_attention"
        return None

    def prepare(self, params: AttentionParams, inputs: Tensors, target: Target) -> Prepared:
        from impl.cuda.backend import kernel_fields
        from impl.spark_attention.api import spark_attention
        from impl.spark_attention.kernels.forward import select_kernel, source_arch

        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        arch = self.kernel_arch or source_arch(q.device)
        options = {"causal": params.causal, "accumulate": self.accumulate, "kernel_arch": arch}
        forward = functools.partial(spark_attention, **options)
        if params.direction == "backward":
            return Prepared(attention_call(forward, inputs), backend="reference")

        kernel = select_kernel(q, k, v, self.accumulate, arch)
        fields = kernel_fields([kernel], q.device)
        if fields["backend"] != "reference":
            fields["tuning"] = {"kernel": kernel.name, "block_n": dict(kernel.macros)["BLOCK_N"]}
        if target.capability > VOLTA and arch == "sm_70":
            fields["no_times"] = EMULATED_MMA
        if fields["backend"] == "emulated":
            forward = functools.partial(_emulated_forward, **options)
        variant = "fp16 accumulate" if self.accumulate == "fp16" else None
        return Prepared(attention_call(forward, inputs), variant=variant, **fields)


class SparkAttentionSm70(SparkAttention):
    """The Volta kernel on any GPU: on a newer one only its result is checked."""

    name = "spark_attention_sm70"
    label = "SparkAttention (Volta kernel)"
    summary = "the mma.m8n8k4 kernel; timed on a V100, checked on any GPU"
    kernel_arch = "sm_70"


class SparkAttentionFp16Acc(SparkAttentionSm70):
    """The Volta kernel whose products accumulate in fp16: half the tensor instructions, a larger error."""

    name = "spark_attention_fp16acc"
    label = "SparkAttention (fp16 accumulate)"
    summary = "the mma.m8n8k4 kernel with fp16 accumulators; timed on a V100, checked on any GPU"
    accumulate = "fp16"
