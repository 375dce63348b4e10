"""Training steps with the attentions that PyTorch's users have."""

from __future__ import annotations

from baselines.attention.sdpa import SdpaCudnn, SdpaEfficient, SdpaFlash, SdpaMath
from baselines.attention.unfused_fp16 import UnfusedFp16
from harness.exchange import TrainingStepContender


class UnfusedFp16Step(TrainingStepContender):
    """The published comparison's "PyTorch FP16"."""

    attention = UnfusedFp16()


class SdpaFlashStep(TrainingStepContender):
    """FlashAttention-2."""

    attention = SdpaFlash()


class SdpaEfficientStep(TrainingStepContender):
    """CUTLASS; the only fused one on Volta."""

    attention = SdpaEfficient()


class SdpaCudnnStep(TrainingStepContender):
    """cuDNN."""

    attention = SdpaCudnn()


class SdpaMathStep(TrainingStepContender):
    """Unfused, and upcast to float32."""

    attention = SdpaMath()
