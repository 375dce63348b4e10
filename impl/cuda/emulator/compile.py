"""Kernel source to a shared library for the CPU, through the system's g++, with a cache on disk."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from impl.cuda.build import INCLUDE, BuildError, Kernel, cache_folder, source_closure
from impl.cuda.emulator.symbols import thread_local_arrays

_HERE = Path(__file__).parent
_EMULATED_INCLUDE = _HERE / "include"
_COMMON_OPTIONS = [
    "-std=c++17",
    "-g1",
    "-gdwarf-4",  # addr2line misreads the first lines of a function in version 5
    "-fno-var-tracking",  # where variables are, which -g1 does not tell: a fifth of the compiler's time
    "-fno-var-tracking-assignments",
    "-fPIC",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",
]
_RUNTIME_OPTIONS = ["-O2", "-Wall", "-Wextra", "-Wno-parentheses"]
_KERNEL_OPTIONS = [
    # Calls hooks.cpp before each memory access. Without the scalar replacement of aggregates, a copy of a uint4
    # stays one access of 16 bytes, as in the kernel's machine code on the GPU.
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-sra",
    "-fno-ipa-sra",
    "-fno-extern-tls-init",
]
_FAST_OPTIONS = ["-O2", "-ftrivial-auto-var-init=pattern"]
_DEBUG_OPTIONS = ["-O0", "-g2"]
_OLDEST_COMPILER = 12  # the first with _Float16 in C++
_REDZONE_BYTES = 1024
_SHARED_ARRAY = re.compile(r"^(\w+:\n\t\.zero\t\d+\n)", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """A kernel compiled for the CPU.

    `hash` is that of source, headers, macros, options, compiler and runtime. `shared_arrays` are (offset, bytes) in a
    block's shared window of its static arrays; `dynamic_offset` is the place of the dynamic one there.
    """

    path: Path
    hash: str
    shared_arrays: tuple[tuple[int, int], ...]
    dynamic_offset: int


@functools.cache
def available() -> str | None:
    """Why kernels cannot be emulated here, or None when they can."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"the emulator has no context switch for {platform.machine()}"
    missing = [tool for tool in ("g++", "readelf", "addr2line") if shutil.which(tool) is None]
    if missing:
        return f"the emulator needs {', '.join(missing)}: install g++ {_OLDEST_COMPILER} or newer and binutils"
    version = subprocess.run(["g++", "-dumpversion"], check=True, capture_output=True, text=True).stdout.strip()
    if int(version.split(".")[0]) < _OLDEST_COMPILER:
        return f"the emulator needs g++ {_OLDEST_COMPILER} or newer, not {version}"
    return None


def debugging() -> bool:
    """Whether VOLTABENCH_EMULATOR_DEBUG is set: kernels then keep all variables, and blocks run one by one."""
    return bool(os.environ.get("VOLTABENCH_EMULATOR_DEBUG"))


@functools.cache
def compile_kernel(kernel: Kernel) -> Library:
    """Compile `kernel` and the runtime for the CPU, or fetch them from the cache. Raises BuildError with g++'s log."""
    if reason := available():
        raise BuildError(reason)
    options = [*_COMMON_OPTIONS, *_machine_options()]
    sources = [*source_closure(kernel.file), *_headers(), Path(__file__)]
    kernel_options = [*options, *_KERNEL_OPTIONS, *(_DEBUG_OPTIONS if debugging() else _FAST_OPTIONS)]
    runtime = _runtime(options)
    key = _digest([kernel.entry, kernel.macros, kernel_options, _compiler(), runtime.stem], sources)
    path = _cache() / f"{kernel.entry}-{key}.so"
    with _alone(path) as missing:
        if missing:
            _compile(kernel, kernel_options, runtime, path)
    return _describe(path, key)


def _compile(kernel: Kernel, options: list[str], runtime: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unit, assembly, library = (Path(folder) / name for name in ("unit.cpp", "unit.s", "unit.so"))
        unit.write_text(f'#include "{kernel.file}"\n#include "entry.h"\nEMULATED_ENTRY({kernel.entry})\n')
        macros = [f"-D{name}={value}" for name, value in kernel.macros]
        includes = [f"-I{folder}" for folder in (kernel.file.parent, _EMULATED_INCLUDE, INCLUDE)]
        force = ["-include", str(_EMULATED_INCLUDE / "emulated.h")]
        _run(kernel.name, [*options, *macros, *includes, *force, "-S", unit, "-o", assembly])
        assembly.write_text(_with_redzones(assembly.read_text()))
        linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []  # takes a third of the other's time
        _run(kernel.name, ["-shared", "-pthread", *linker, assembly, runtime, "-o", library])
        library.rename(target)


def _with_redzones(assembly: str) -> str:
    """Put unused bytes around each thread-local, that is, shared array: an index out of bounds reaches no other one.

    Their number is a multiple of any array's alignment.
    """
    zone = rf"\t.zero\t{_REDZONE_BYTES}\n"
    head, *sections = re.split(r"(?=^\t\.section\t)", assembly, flags=re.MULTILINE)
    for i, section in enumerate(sections):
        if section.startswith("\t.section\t.tbss"):
            sections[i] = _SHARED_ARRAY.sub(rf"{zone}\g<1>{zone}", section)
    return "".join([head, *sections])


def _runtime(options: list[str]) -> Path:
    sources = sorted((_HERE / "runtime").iterdir())
    options = [*options, *_RUNTIME_OPTIONS]
    path = _cache() / f"{_digest([options, _compiler()], [*sources, *_headers()])}.o"
    with _alone(path) as missing:
        if not missing:
            return path
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unit, compiled = Path(folder) / "unit.cpp", Path(folder) / "unit.o"
            # As one unit: most of the time goes into the standard headers.
            unit.write_text("".join(f'#include "{source}"\n' for source in sources if source.suffix == ".cpp"))
            _run("the emulator's runtime", [*options, "-c", unit, "-o", compiled])
            compiled.rename(path)
    return path


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether `path` is to be made, which no other process then does meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        yield False
        return
    lock = path.with_suffix(".lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield not path.is_file()
        finally:
            lock.unlink(missing_ok=True)


def _cache() -> Path:
    return cache_folder().parent / "emulated"


def _describe(path: Path, key: str) -> Library:
    arrays = thread_local_arrays(path)
    dynamic_offset, _ = arrays.pop("shared_memory")
    return Library(path, key, tuple(sorted(arrays.values())), dynamic_offset)


def _run(what: str, arguments: list) -> None:
    result = subprocess.run(["g++", *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{what} for the emulator: g++ says:\n{result.stderr}")


def _headers() -> list[Path]:
    return sorted(_EMULATED_INCLUDE.iterdir())


def _digest(key: list, files: list[Path]) -> str:
    digest = hashlib.sha256(json.dumps(key).encode())
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


@functools.cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


@functools.cache
def _machine_options() -> list[str]:
    """Instructions that make fp16 conversions and fp32 fused multiply-add fast, where the processor has them."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.is_file() else set()
    return [f"-m{flag}" for flag in ("avx2", "f16c", "fma") if flag in flags]
