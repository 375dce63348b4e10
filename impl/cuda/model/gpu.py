"""What the model knows of a GPU. docs/model.md says where each figure was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEDULERS = 4  # of an SM, from Volta to Hopper
OF_SM = ("shared", "global")  # pipes that an SM's schedulers share
QUEUED = (*OF_SM, "transcendental")  # pipes with a queue before them

# Instructions by pipe; those not listed are integer, comparison, conversion to fp16 pairs and move: "alu".
_PIPES = {
    "tensor": ("HMMA",),
    "fma": ("FFMA", "FMUL", "FADD", "IMAD"),
    "half": ("HADD2", "HMUL2", "HFMA2"),
    "transcendental": ("MUFU", "F2F", "F2I", "I2F", "POPC", "FLO"),
    "shared": ("LDS", "LDSM", "STS", "SHFL", "ATOMS"),
    "global": ("LDG", "STG", "LDGSTS", "RED", "ATOMG"),
    "barrier": ("BAR",),
    "branch": ("BRA", "BSSY", "BSYNC", "WARPSYNC", "EXIT", "YIELD", "NOP", "BMOV", "DEPBAR", "LDGDEPBAR"),
    "uniform": ("UIADD3", "UMOV", "ULEA", "UISETP", "USEL", "USHF", "ULOP3", "UIMAD"),
    "other": ("S2R", "S2UR", "LDC", "ULDC", "MEMBAR", "ERRBAR", "CCTL", "CGAERRBAR"),
}
PIPES = (*_PIPES, "alu")
PIPE_OF = {name: pipe for pipe, names in _PIPES.items() for name in names}


@dataclass(frozen=True)
class Gpu:
    """Figures of one GPU, in clocks of its SMs.

    clock_mhz is assumed, not measured. service: how long a warp instruction takes a scheduler's pipe. latency: from
    there to its result, of those whose result is waited for. registers_per_clock: what a bank of the register file
    gives a warp. l2_bytes_per_clock: what one SM gets of L2 when all ask.
    """

    name: str
    arch: str
    sm_count: int
    clock_mhz: float
    service: Mapping[str, float]
    latency: Mapping[str, int]
    registers_per_clock: int
    l2_bytes_per_clock: float


_SERVICE = {"fma": 2, "alu": 2, "half": 2, "uniform": 2, "transcendental": 8, "branch": 2, "barrier": 1, "other": 2}

V100 = Gpu(
    "V100",
    "sm_70",
    sm_count=80,
    clock_mhz=1530,
    service={**_SERVICE, "tensor": 2},  # one step of m8n8k4
    latency={"tensor": 8, "transcendental": 12, "shared": 18, "global": 193, "barrier": 20, "other": 30},
    registers_per_clock=2,
    l2_bytes_per_clock=19.5,
)
H200 = Gpu(
    "H200",
    "sm_90a",
    sm_count=132,
    clock_mhz=1920,
    service={**_SERVICE, "fma": 1, "tensor": 4 / 0.629},  # m16n8k16
    latency={"tensor": 0, "transcendental": 9, "shared": 29, "global": 370, "barrier": 20, "other": 30},
    registers_per_clock=1,
    l2_bytes_per_clock=27,
)
