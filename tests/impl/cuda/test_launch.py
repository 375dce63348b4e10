"""Launching on a GPU: arguments by type, the current stream, errors before any launch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from impl.cuda.build import Kernel
from impl.cuda.launch import device_arch, launch

SOURCE = """
extern "C" __global__ void combine(double* out, const float* x, int i, long long l, float f) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    float* tile = reinterpret_cast<float*>(shared_memory);
    tile[20000 + threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = tile[20031 - threadIdx.x] + i + (double)l + f;
}
"""
SHARED_BYTES = 4 * 20032  # past the 48 KB that need no opt-in


@pytest.fixture
def kernel(tmp_path):
    file = tmp_path / "combine.cu"
    file.write_text(SOURCE)
    return Kernel("combine", file, "combine", "sm_70", (), 32, SHARED_BYTES, max_registers=64, min_blocks_per_sm=1)


def arguments(device):
    out, x = torch.full((2, 32), torch.nan, dtype=torch.float64), torch.randn(32)
    return [out.to(device), x.to(device), np.int32(-3), np.int64(2**40), np.float32(0.5)]


@pytest.mark.parametrize("bad", [3, 0.5, "x", None])
def test_untyped_arguments_are_refused(kernel, bad):
    with pytest.raises(TypeError, match="kernel arguments are tensors, tensor maps, numpy int32"):
        launch(kernel, (1, 1, 1), [torch.zeros(1), bad])


@pytest.mark.parametrize("tensors", [[], [torch.zeros(1)]])
def test_tensors_must_be_on_one_gpu(kernel, tensors):
    with pytest.raises(ValueError, match="must be on one CUDA device"):
        launch(kernel, (1, 1, 1), tensors)


@pytest.mark.gpu
def test_arguments_arrive_with_their_types(kernel):
    out, x, *scalars = arguments("cuda")
    launch(kernel, (2, 1, 1), [out, x, *scalars])
    expected = x.flip(0).double() - 3 + 2**40 + 0.5
    assert torch.equal(out, expected.expand(2, 32))


@pytest.mark.gpu
def test_a_captured_launch_replays(kernel):
    out, x, *scalars = arguments("cuda")
    launch(kernel, (2, 1, 1), [out, x, *scalars])
    torch.cuda.synchronize()
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(kernel, (2, 1, 1), [out, x, *scalars])
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_architecture_of_the_device():
    major, minor = torch.cuda.get_device_capability()
    expected = {(7, 0): "sm_70", (8, 0): "sm_80", (8, 6): "sm_80", (9, 0): "sm_90a"}
    assert device_arch(torch.cuda.current_device()) == expected.get((major, minor), f"sm_{major}{minor}a")
