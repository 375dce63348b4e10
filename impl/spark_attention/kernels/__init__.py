"""The kernels of SparkAttention."""

from __future__ import annotations

from impl.cuda.build import Kernel
from impl.spark_attention.kernels import sm70, sm80, sm90

KERNELS: tuple[Kernel, ...] = (
    *sm70.FORWARD,
    *sm70.BACKWARD,
    *sm70.WITH_EXTRAS,
    *sm80.FORWARD,
    *sm80.BACKWARD,
    *sm80.WITH_EXTRAS,
    *sm90.FORWARD,
    *sm90.BACKWARD,
)
