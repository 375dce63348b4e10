"""Each kind of fault, planted in a test kernel, is found and named by kernel, block, thread and source line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from impl.cuda.build import Kernel
from impl.cuda.emulator import EmulatedFault, launch

_SOURCE = Path(__file__).parent / "kernels" / "faulty.cu"
_BLOCKS, _THREADS = 2, 64

_ONE = "blockIdx.x == 1 && thread == 37"
_EACH_COPIES = "copy_async_16(dynamic + 4 * thread, x + thread % 16 * 4, true); copy_async_commit()"
_VALUES_OF_ALL = "__shfl_xor_sync(0xffffffffu, value, 1)"

# name: threads that execute it, statement, what the others do, part of the message
_FAULTS = {
    "global read past the end": (_ONE, "value = x[128]", "", "read of 4 bytes outside global memory: byte 512 of"),
    "global write before the start": (_ONE, "y[-1] = 0", "", "write of 4 bytes outside global memory: byte -4 of"),
    "global read far away": (_ONE, "value = x[1ll << 40]", "", "read of 4 bytes outside global memory"),
    "null pointer": (_ONE, "*reinterpret_cast<volatile int*>(thread - 37) = 0", "", "write of 4 bytes outside global"),
    "vector across the end": (
        _ONE,
        "const float2 pair = reinterpret_cast<const float2*>(x + 2)[63]; value = pair.x",
        "",
        "read of 8 bytes outside global memory: byte 512 of",
    ),
    "static shared overflow": (
        _ONE,
        "first[27 + thread] = 1",
        "",
        "outside shared memory: byte 256 of an array of 256",
    ),
    "static shared underflow": (_ONE, "second[thread - 38] = 1", "", "write of 4 bytes outside shared memory"),
    "dynamic shared overflow": (_ONE, "dynamic[256] = 1", "", "outside shared memory: byte 1024 of an array of 1024"),
    "shared never written": (_ONE, "value = dynamic[4 * thread + 1]", "", "which was never written"),
    "misaligned vector": (
        _ONE,
        "*reinterpret_cast<float4*>(dynamic + 2) = make_float4(0, 0, 0, 0)",
        "",
        "misaligned write of 16 bytes at an address of alignment 8",
    ),
    "misaligned ldmatrix": ("true", "load_matrix_x4(fragment, second + 2)", "", "must be a multiple of 16 bytes"),
    "ldmatrix outside shared memory": ("true", "load_matrix_x4(fragment, x)", "", "not in shared memory"),
    "misaligned cp.async": (_ONE, "copy_async_16(dynamic + 2, x, true)", "", "must be multiples of 16 bytes"),
    "cp.async past the end": (_ONE, "copy_async_16(dynamic, x + 128, true)", "", "outside global memory: byte 512 of"),
    "cp.async not waited for": (
        "true",
        f"{_EACH_COPIES}; value = dynamic[4 * thread]",
        "",
        "where an asynchronous copy has not been waited for",
    ),
    "cp.async not committed": (
        "true",
        "copy_async_16(dynamic + 4 * thread, x, true); copy_async_wait<0>(); value = dynamic[4 * thread]",
        "",
        "where an asynchronous copy has not been waited for",
    ),
    "cp.async group still pending": (
        "true",
        f"{_EACH_COPIES}; copy_async_wait<1>(); value = dynamic[4 * thread]",
        "",
        "where an asynchronous copy has not been waited for",
    ),
    "cp.async overwritten": (
        "true",
        f"{_EACH_COPIES}; dynamic[4 * thread] = value",
        "",
        "write of 4 bytes at shared byte",
    ),
    "different barriers": ("thread < 32", "__syncthreads()", "__syncthreads()", "divergence at a barrier"),
    "barrier missed": (
        "thread != 37",
        "__syncthreads()",
        f"value = {_VALUES_OF_ALL}",
        "63 at __syncthreads",
    ),
    "different warp instructions": (
        "thread % 2 == 0",
        f"value = {_VALUES_OF_ALL}",
        "value = __ballot_sync(0xffffffffu, value > 0)",
        "divergence in a warp",
    ),
    "different masks": (
        "thread % 2 == 0",
        f"value = {_VALUES_OF_ALL}",
        "value = __shfl_xor_sync(0xfffffffeu, value, 1)",
        "divergence in a warp",
    ),
    "lane not in the mask": (_ONE, "value = __shfl_sync(1u, value, 0)", "", "does not name lane 5"),
    "shuffle from an absent lane": (
        "thread < 16",
        "value = __shfl_sync(0xffffu, value, 20)",
        "",
        "reads from lane 20, which does not take part",
    ),
    "mma by part of a warp": (
        "thread != 37",
        "mma_m16n8k16_f16(d, fragment, 0, 0)",
        "return",
        "mma.m16n8k16",
    ),
}

_RACES = {
    "between warps": "second[thread] = value; value = second[(thread + 32) % 64]",
    "inside a warp": "second[thread] = value; value = second[thread ^ 1]",
    "two writers": "second[thread / 2] = value",
    "cp.async seen by others": f"{_EACH_COPIES}; copy_async_wait<0>(); value = dynamic[4 * (63 - thread)]",
    "ordered in its warp only": "second[thread] = value; __syncwarp(); value = second[(thread + 32) % 64]",
    "atomic and plain": "atomicAdd(&second[0], value); value = second[0]",
}

_SOUND = {
    "nothing": "",
    "ordered by a barrier": "second[thread] = value; __syncthreads(); value = second[(thread + 32) % 64]",
    "ordered in a warp": "second[thread] = value; __syncwarp(); value = second[thread ^ 1]",
    "waited for and ordered": (
        f"{_EACH_COPIES}; copy_async_wait<0>(); __syncthreads(); value = dynamic[4 * (63 - thread)]"
    ),
    "only atomic": "atomicAdd(&second[0], value)",
    "constants": "static const float table[2] = {1, 2}; value = table[thread % 2]",
    "bytes of one word": "reinterpret_cast<unsigned short*>(second)[thread] = 0",
}


def _run(statement: str, culprits: str = "true", otherwise: str = "", **options) -> torch.Tensor:
    macros = (("STATEMENT", statement), ("CULPRITS", culprits), ("OTHERWISE", otherwise))
    kernel = Kernel("faulty_kernel", _SOURCE, "faulty", "sm_80", macros, _THREADS, 4 * 4 * _THREADS, 64, 1)
    y = torch.full((_BLOCKS * _THREADS,), float("nan"))
    launch(kernel, (_BLOCKS, 1, 1), [torch.randn(_BLOCKS * _THREADS), y], **options)
    return y


def _line(marker: str) -> str:
    lines = _SOURCE.read_text().splitlines()
    return f"faulty.cu:{next(i for i, line in enumerate(lines, 1) if marker in line)}"


@pytest.mark.parametrize("name", _FAULTS)
def test_fault_is_found_at_its_line(name: str) -> None:
    culprits, statement, otherwise, message = _FAULTS[name]
    with pytest.raises(EmulatedFault) as caught:
        _run(statement, culprits, otherwise)
    text = str(caught.value)
    assert message in text
    assert text.startswith("faulty_kernel: block (")
    assert _line("STATEMENT;") in text or _line("OTHERWISE;") in text
    if culprits == _ONE:
        assert "block (1, 0, 0), thread (37, 0, 0)" in text


@pytest.mark.parametrize("name", _RACES)
def test_race_is_found(name: str) -> None:
    with pytest.raises(
        EmulatedFault, match=r"race at shared byte \d+: thread \d+ (read|wrote) it at faulty.cu:"
    ) as caught:
        _run(_RACES[name], check_races=True)
    assert _line("STATEMENT;") in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", _SOUND)
def test_sound_kernel_passes(name: str, seed: int) -> None:
    assert _run(_SOUND[name], check_races=True, seed=seed).isfinite().all()


def test_result_without_a_barrier_depends_on_the_seed() -> None:
    statement = _RACES["between warps"]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    results = set()
    for seed in range(8):
        torch.set_rng_state(state)
        results.add(tuple(_run(statement, seed=seed).tolist()))
    assert len(results) > 1
