"""Compiling for the emulator: what is missing or wrong is said, and nothing is compiled twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from impl.cuda import emulator
from impl.cuda.build import BuildError
from impl.cuda.emulator import compile as emulator_compile


@pytest.fixture
def special(test_kernel):
    return test_kernel("special.cu", "special", 128, "sm_70", FUNCTION="exp2_fast")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No kernel in the cache, neither on disk nor in this process; the runtime, which takes longest, stays there."""
    runtime = [*emulator_compile._cache().glob("*.o")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    emulator_compile._cache().mkdir(parents=True)
    for compiled in runtime:
        shutil.copy(compiled, emulator_compile._cache())
    for cached in (emulator_compile.compile_kernel, emulator_compile.available):
        cached.cache_clear()
    yield tmp_path
    for cached in (emulator_compile.compile_kernel, emulator_compile.available):
        cached.cache_clear()


def test_without_a_compiler_the_reason_is_given(fresh, monkeypatch, special):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "g++" else f"/usr/bin/{tool}")
    assert "g++" in emulator.available()
    with pytest.raises(BuildError, match=r"g\+\+"):
        emulator.launch(special, (1, 1, 1), [torch.zeros(128), torch.zeros(128)])


def test_compiles_once_per_source_and_macros(fresh, monkeypatch, special):
    first = emulator_compile.compile_kernel(special)
    emulator_compile.compile_kernel.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(emulator_compile, "_run", lambda *_: pytest.fail("compiled again"))
        assert emulator_compile.compile_kernel(special) == first
    other = emulator_compile.compile_kernel(replace(special, macros=(("FUNCTION", "log2_fast"),)))
    assert other.path != first.path
    assert not [path for path in first.path.parent.iterdir() if path.is_dir()]


def test_a_refused_source_gives_the_compilers_words(special):
    wrong = replace(special, name="wrong", macros=(("FUNCTION", "no_such_function"),))
    with pytest.raises(BuildError, match=r"(?s)wrong .*no_such_function.*special\.cu:6"):
        emulator.launch(wrong, (1, 1, 1), [torch.zeros(128), torch.zeros(128)])


def test_inline_ptx_is_refused(special):
    ptx = 'asm("nop;"); emulated::exp2_fast'
    with pytest.raises(BuildError, match="inline PTX without an emulated form"):
        emulator_compile.compile_kernel(replace(special, macros=(("FUNCTION", f"0; {ptx}"),)))


def test_arguments_must_fit_the_entry(special):
    x = torch.zeros(128)
    with pytest.raises(TypeError, match=r"takes parameters of \[8, 8\] bytes, not \[8, 4\]"):
        emulator.launch(special, (1, 1, 1), [x, np.int32(3)])
    with pytest.raises(TypeError, match="numpy int32, int64 or float32"):
        emulator.launch(special, (1, 1, 1), [x, 3])


def test_too_much_shared_memory_is_refused(special):
    big = replace(special, dynamic_shared_bytes=97 * 1024)
    with pytest.raises(ValueError, match="98304"):
        emulator.launch(big, (1, 1, 1), [torch.zeros(128), torch.zeros(128)])
    emulator.launch(replace(big, arch="sm_80"), (1, 1, 1), [torch.zeros(128), torch.zeros(128)])


def test_views_of_one_storage_stay_one_buffer(special):
    """The kernel writes through one view what another, and the tensor behind both, then show."""
    whole = torch.zeros(384)
    emulator.launch(special, (1, 1, 1), [whole[:128], whole[256:]])
    assert whole.tolist() == [0.0] * 256 + [1.0] * 128


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_a_thread_can_be_watched_under_gdb(special, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import PosixPath\n"
        "import torch\n"
        "from impl.cuda import emulator\n"
        "from impl.cuda.build import Kernel\n"
        f"emulator.launch({special!r}, (1, 1, 1), [torch.zeros(128), torch.zeros(128)])\n"
    )
    commands = ["set breakpoint pending on", "break special.cu:6 if i == 77", "run", "print i + 1000", "backtrace 1"]
    result = subprocess.run(
        ["gdb", "-batch", *(f"-ex={command}" for command in commands), "--args", sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ".", "VOLTABENCH_EMULATOR_DEBUG": "1"},
    )
    assert "$1 = 1077" in result.stdout, result.stdout + result.stderr
    assert "special.cu:6" in result.stdout
