"""Random inputs of this run, the formats, and the ways to multiply: reference, emulated kernel, kernel on a GPU."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from impl.cuda import emulator
from impl.flash_llm.api import spmm
from impl.flash_llm.formats import FORMATS
from impl.flash_llm.kernels import Device, Problem, choose_plan
from tests.impl.flash_llm.devices import A100, HOPPER, VOLTA

_GUARD_BYTES = 256


def pytest_collection_modifyitems(items):
    """Leaves out an architecture for which a format has no source of its own."""
    absent = {("tiled_csl", "sm_90a"), ("bitmap", "sm_70"), ("two_of_four", "sm_70")}

    def has_source(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return (params.get("kind"), str(params.get("multiply")).partition(" ")[2]) not in absent

    items[:] = filter(has_source, items)


@pytest.fixture(autouse=True)
def fresh_seed():
    """Another seed in every run; a failing test shows it."""
    print(f"torch.manual_seed({torch.seed()})")


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """New tensors start as NaN, so that whatever a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=FORMATS)
def kind(request):
    """A format."""
    return FORMATS[request.param]


_DEVICES = {"sm_70": VOLTA, "sm_80": A100, "sm_90a": HOPPER}  # whose plans are emulated


@pytest.fixture(
    params=[
        "reference",
        *(f"emulated {arch}" for arch in _DEVICES),
        pytest.param("kernel", marks=pytest.mark.gpu),
        *(pytest.param(f"kernel {arch}", marks=pytest.mark.gpu) for arch in ("sm_70", "sm_80")),
    ]
)
def multiply(request, kind):
    """`multiply(w, x, split_k=None)` gives Y [m, n] on the CPU, in a format and by the backend the test is run for."""
    if request.param == "reference":
        return lambda w, x, split_k=None: spmm(kind.from_dense(w), x, split_k)
    how, _, arch = request.param.partition(" ")
    launch, _ = launcher(how)
    if how == "emulated":
        device = _DEVICES[arch]
        return lambda w, x, split_k=None: _by_kernel(launch, device, kind.from_dense(w), x, split_k)
    device = Device.of(torch.device("cuda", torch.cuda.current_device()))
    if arch:
        device = dataclasses.replace(device, capability=_DEVICES[arch].capability)

    def on_gpu(w, x, split_k=None):
        return _by_kernel(launch, device, kind.from_dense(w.cuda()), to_cuda(x), split_k).cpu()

    return on_gpu


def _by_kernel(launch, device, weight, x, split_k):
    m, k = weight.shape
    plan = choose_plan(weight.name, Problem(m, x.shape[1], k, weight.nbytes, weight.longest), device, split_k)
    return plan.multiply(weight.data, weight.offsets, x, m, launch)


def launcher(how):
    """How kernels are launched and checked, and the device of their tensors: "emulated", or "kernel" for a GPU."""
    if how == "emulated":
        if reason := emulator.available():
            pytest.skip(reason)
        return functools.partial(emulator.launch, check_races=True), "cpu"
    from impl.cuda.launch import launch

    return guarded(launch), "cuda"


def guarded(launch):
    """`launch` with every tensor moved between bytes of 0xFF, which are NaN, or -1: what is read there spoils the
    result, and what is written there fails the test. Gaps between the rows of a tensor are guards too."""

    def run(kernel, grid, args):
        moved, homes = [], []
        for arg in args:
            if not isinstance(arg, torch.Tensor):
                moved.append(arg)
                continue
            span = 1 + sum((size - 1) * stride for size, stride in zip(arg.shape, arg.stride(), strict=True))
            span = span if arg.numel() else 0
            lead = _GUARD_BYTES + arg.data_ptr() % 16
            raw = torch.full((lead + span * arg.itemsize + _GUARD_BYTES,), 0xFF, dtype=torch.uint8, device=arg.device)
            inner = raw[lead : lead + span * arg.itemsize].view(arg.dtype).as_strided(arg.shape, arg.stride())
            inner.copy_(arg)
            moved.append(inner)
            homes.append((arg, inner, raw, raw.clone(), lead))
        launch(kernel, grid, moved)
        for arg, inner, raw, before, lead in homes:
            after = raw.clone()
            changed = before[lead : len(raw) - _GUARD_BYTES].view(arg.dtype).as_strided(arg.shape, arg.stride())
            changed.copy_(inner)
            assert torch.equal(before, after), f"{kernel.name} wrote outside a tensor of shape {tuple(arg.shape)}"
            arg.copy_(inner)

    return run


def to_cuda(x):
    """x on the GPU with the strides and the misalignment it has."""
    begin = x.data_ptr() % 16 // x.itemsize
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    home = torch.empty(begin + span, dtype=x.dtype, device="cuda")
    return home[begin:].as_strided(x.shape, x.stride()).copy_(x)
