"""The figures of a GPU that the model takes, against small loops on that GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from impl.cuda.build import Kernel
from impl.cuda.model.gpu import H200, SCHEDULERS, V100
from impl.cuda.model.registers import read_clocks

STEPS = 16 * 64  # of the kernel's kUnroll in 64 loops
PRODUCT, EXPONENTIAL, EXPONENTIAL_CHAIN, COMPARISONS, MULTIPLICATION, L2_CHAIN, BARRIER, BESIDE = range(8)


@pytest.fixture
def gpu():
    name = torch.cuda.get_device_name()
    found = [gpu for gpu in (V100, H200) if gpu.name in name]
    return found[0] if found else pytest.skip(f"the model has no figures of {name}")


@pytest.fixture
def clocks():
    """clocks(probe, warps_per_scheduler=2): of a scheduler, for one step of kernels/probe.cu."""
    from impl.cuda.launch import launch

    def measure(probe, warps_per_scheduler=2):
        threads = 32 * SCHEDULERS * warps_per_scheduler
        source = Path(__file__).parent / "kernels" / "probe.cu"
        kernel = Kernel(f"probe_{probe}", source, "probe", "sm_70", (("PROBE", probe),), threads, 0, 255, 1)
        out = torch.zeros(threads // 32, dtype=torch.int64, device="cuda")
        arguments = [out, torch.zeros(threads, device="cuda"), chain(), np.int32(STEPS // 16)]
        for _ in range(2):  # the first fills the caches
            launch(kernel, (1, 1, 1), arguments)
        return out.max().item() / STEPS / warps_per_scheduler

    return measure


def chain():
    """32 MiB of places, 128 bytes apart, in a random round."""
    order = torch.randperm((8 << 20) // 32)
    places = torch.zeros(8 << 20, dtype=torch.int32)
    places[order * 32] = (order.roll(-1) * 32).int()
    return places.cuda()


@pytest.mark.gpu
def test_rates(gpu, clocks):
    steps = 4 if gpu is V100 else 1  # of a product
    assert clocks(PRODUCT) == pytest.approx(gpu.service["tensor"] * steps, rel=0.1)
    assert clocks(EXPONENTIAL) == pytest.approx(gpu.service["transcendental"], rel=0.1)
    assert clocks(COMPARISONS) / 2 == pytest.approx(gpu.service["alu"], rel=0.15)
    assert clocks(MULTIPLICATION) == pytest.approx(gpu.service["fma"], rel=0.3)


@pytest.mark.gpu
def test_latencies(gpu, clocks):
    chained = clocks(EXPONENTIAL_CHAIN, warps_per_scheduler=1)
    assert chained == pytest.approx(gpu.service["transcendental"] + gpu.latency["transcendental"], rel=0.15)
    assert clocks(L2_CHAIN, warps_per_scheduler=1) == pytest.approx(gpu.latency["global"], rel=0.15)
    assert clocks(BARRIER, warps_per_scheduler=1) == pytest.approx(gpu.latency["barrier"], rel=0.3)


@pytest.mark.gpu
def test_products_and_multiplications_share_the_register_file(gpu, clocks):
    """More than the Tensor Core takes, less than both in turn."""
    both = clocks(PRODUCT) + 4 * clocks(MULTIPLICATION)
    assert clocks(PRODUCT) * 1.1 < clocks(BESIDE) < both


def test_a_product_and_four_multiplications_as_the_model_reads_them(instruction):
    """What an H200 took 9.9 clocks for: 6.4 of the Tensor Core, but ten registers or so from each bank."""
    product = instruction("HMMA.16816.F32", "R8, R4.reuse, R12, R8")
    beside = [instruction("FMUL", f"R{20 + i}, R{20 + i}, R{41 + i}") for i in range(4)]
    assert 8 <= sum(read_clocks([product, *beside], H200.registers_per_clock)) <= 11
