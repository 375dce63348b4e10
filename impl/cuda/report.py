"""The resource report: every kernel of every system, built for each architecture, held to its budget."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impl.cuda.build import BuildError, Cubin, Kernel, Resources, build

_IMPL = Path(__file__).resolve().parents[1]
_WARP = 32


@dataclass(frozen=True)
class Limits:
    """Per-SM limits of an architecture (CUDA C++ Programming Guide, technical specifications)."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_granularity: int
    reserved_shared_bytes: int  # taken by the system from each block
    registers: int = 65536
    register_granularity: int = 256  # per warp
    warp_granularity: int = 4  # registers are given to groups of warps, one per sub-core


LIMITS = {
    "sm_70": Limits(64, 32, shared_bytes=98304, shared_granularity=256, reserved_shared_bytes=0),
    "sm_80": Limits(64, 32, shared_bytes=167936, shared_granularity=128, reserved_shared_bytes=1024),
    "sm_90a": Limits(64, 32, shared_bytes=233472, shared_granularity=128, reserved_shared_bytes=1024),
}


@dataclass(frozen=True)
class Occupancy:
    """Blocks resident on one SM, the share of its warps they fill, and the resource that sets the limit."""

    blocks_per_sm: int
    fraction: float
    limiter: str


def all_kernels() -> list[Kernel]:
    """The KERNELS of every `impl/<system>/kernels/__init__.py`."""
    packages = sorted(path.parent.parent.name for path in _IMPL.glob("*/kernels/__init__.py"))
    return [k for system in packages for k in importlib.import_module(f"impl.{system}.kernels").KERNELS]


def target_architectures(kernel: Kernel, architectures: Sequence[str]) -> list[str]:
    """Those of `architectures` that the source is built for ahead of its use: its own and later ones.

    A source for "sm_90a" uses instructions of that architecture alone. Later architectures emulate the tensor
    instruction of "sm_70", with code that no one times: built there when it is launched.
    """
    if kernel.arch == "sm_70" or kernel.arch.endswith("a"):
        return [arch for arch in architectures if arch == kernel.arch]
    return [arch for arch in architectures if _number(arch) >= _number(kernel.arch)]


def occupancy(kernel: Kernel, resources: Resources, arch: str) -> Occupancy:
    """Occupancy of `kernel` on one SM of `arch`, by the rules of NVIDIA's occupancy calculator."""
    limits = LIMITS[arch]
    warps = -(-kernel.threads // _WARP)
    registers_per_warp = _round_up(resources.registers * _WARP, limits.register_granularity)
    warps_by_registers = limits.registers // registers_per_warp // limits.warp_granularity * limits.warp_granularity
    shared = kernel.dynamic_shared_bytes + resources.static_shared_bytes + limits.reserved_shared_bytes
    blocks_by = {
        "registers": warps_by_registers // warps,
        "shared memory": limits.shared_bytes // max(1, _round_up(shared, limits.shared_granularity)),
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    limiter = min(blocks_by, key=blocks_by.__getitem__)
    blocks = blocks_by[limiter]
    return Occupancy(blocks, blocks * warps / limits.warps, limiter)


def check_budget(kernel: Kernel, cubin: Cubin, arch: str) -> None:
    """Raise BuildError when the kernel spills, or exceeds its registers, or too few blocks fit on one SM."""
    resources = cubin.resources
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    blocks = occupancy(kernel, resources, arch).blocks_per_sm
    broken = []
    if spilled:
        broken.append(f"spills {spilled} bytes")
    if resources.registers > kernel.max_registers:
        broken.append(f"uses {resources.registers} registers, budget {kernel.max_registers}")
    if blocks < kernel.min_blocks_per_sm:
        broken.append(f"{blocks} blocks per SM, budget {kernel.min_blocks_per_sm}")
    if broken:
        raise BuildError(f"{kernel.name} for {arch}: {'; '.join(broken)}")


def report_row(kernel: Kernel, cubin: Cubin, arch: str) -> dict[str, Any]:
    """One line of the report: what was built for which architecture, and what it uses there."""
    resources = cubin.resources
    fit = occupancy(kernel, resources, arch)
    return {
        "kernel": kernel.name,
        "source_arch": kernel.arch,
        "built_arch": arch,
        "registers": resources.registers,
        "spill_bytes": resources.spill_store_bytes + resources.spill_load_bytes,
        "shared_bytes": kernel.dynamic_shared_bytes + resources.static_shared_bytes,
        "threads": kernel.threads,
        "blocks_per_sm": fit.blocks_per_sm,
        "occupancy": fit.fraction,
        "limiter": fit.limiter,
        "hash": cubin.hash,
    }


def write_report(architectures: Sequence[str], output: Path) -> None:
    """Build all kernels for `architectures`, check their budgets and write the report as CSV.

    Raises OSError for a file that cannot be written, before anything is compiled, and BuildError when a kernel does
    not compile or breaks its budget.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    output.touch()
    jobs = [(kernel, arch) for kernel in all_kernels() for arch in target_architectures(kernel, architectures)]
    with ProcessPoolExecutor() as pool:
        cubins = list(pool.map(build, *zip(*jobs, strict=True))) if jobs else []
    rows = []
    for (kernel, arch), cubin in zip(jobs, cubins, strict=True):
        check_budget(kernel, cubin, arch)
        rows.append(report_row(kernel, cubin, arch))
    if not rows:
        raise BuildError(f"no kernel can be built for {', '.join(architectures)}")
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _number(arch: str) -> int:
    return int(re.search(r"\d+", arch).group())


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
