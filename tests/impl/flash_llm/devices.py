"""GPUs that plans are made for, and the layers that they are made of."""

from __future__ import annotations

from impl.flash_llm.kernels import Device

A100 = Device((8, 0), sm_count=4, shared_bytes_per_sm=167936, shared_bytes_per_block=166912)  # with few SMs: emulated
H200 = Device((9, 0), sm_count=132, shared_bytes_per_sm=233472, shared_bytes_per_block=232448)
RTX_3090 = Device((8, 6), sm_count=82, shared_bytes_per_sm=102400, shared_bytes_per_block=101376)
VOLTA = Device((7, 0), sm_count=4, shared_bytes_per_sm=98304, shared_bytes_per_block=98304)  # with few SMs: emulated
HOPPER = Device((9, 0), sm_count=2, shared_bytes_per_sm=233472, shared_bytes_per_block=232448)  # emulated
V100 = Device((7, 0), sm_count=80, shared_bytes_per_sm=98304, shared_bytes_per_block=98304)

OPT_LAYERS = [
    *((21504, 7168), (7168, 7168), (28672, 7168), (7168, 28672)),
    *((27648, 9216), (9216, 9216), (36864, 9216), (9216, 36864)),
    *((36864, 12288), (12288, 12288), (49152, 12288), (12288, 49152)),
]
