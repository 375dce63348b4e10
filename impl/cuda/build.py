"""CUDA source to cubin through NVRTC, on a machine with or without a GPU, with a cache on disk.

The cache is keyed by everything the cubin depends on: the source and the headers of this repository that it
includes, macros, architecture, options and NVRTC's version. An entry is a folder that is written under a
temporary name and renamed, so that concurrent builds never see half of one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
_OPTIONS = {"std": "c++17", "ptxas_options": ["-v"]}
_QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class BuildError(RuntimeError):
    """A kernel did not compile, or broke its resource budget; the message holds the compiler's log."""


@dataclass(frozen=True)
class Kernel:
    """One specialisation of one `extern "C"` entry, with its launch shape and its resource budget."""

    name: str
    file: Path
    entry: str
    arch: str  # what the source was written for: "sm_70" | "sm_80" | "sm_90a"
    macros: tuple[tuple[str, str | int], ...]
    threads: int
    dynamic_shared_bytes: int
    max_registers: int
    min_blocks_per_sm: int


@dataclass(frozen=True)
class Resources:
    """Per-thread registers, spills and stack, per-block static shared memory, as ptxas reports them."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code of a kernel for one architecture; `hash` names it in the cache and in records."""

    code: bytes
    hash: str
    resources: Resources


def build(kernel: Kernel, arch: str) -> Cubin:
    """Compile `kernel` for `arch` ("sm_70", "sm_80", "sm_90a"), or fetch it from the cache.

    Raises BuildError when NVRTC or the CUDA headers are missing, NVRTC cannot target `arch`, or the source
    does not compile.
    """
    entry_hash = source_hash(kernel, arch)
    entry = cache_folder() / entry_hash
    if not entry.is_dir():
        code, log = _compile(kernel, arch)
        _store(entry, code, _parse_resources(log, kernel))
    resources = Resources(**json.loads((entry / "resources.json").read_text()))
    return Cubin((entry / "kernel.cubin").read_bytes(), entry_hash, resources)


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/voltabench/cubins`, or the same below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voltabench" / "cubins"


def source_hash(kernel: Kernel, arch: str) -> str:
    """Hash of everything the cubin of `kernel` for `arch` depends on. Raises BuildError as `build` does."""
    key = [kernel.entry, kernel.macros, arch, _OPTIONS, _nvrtc_version()]
    digest = hashlib.sha256(json.dumps(key).encode())
    for path in source_closure(kernel.file):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def source_closure(file: Path) -> list[Path]:
    """`file` and, recursively, the headers it includes by quotes, found as NVRTC finds them."""
    found: dict[Path, None] = {}
    pending = [file]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        for name in _QUOTED_INCLUDE.findall(path.read_text()):
            candidates = [folder / name for folder in (path.parent, file.parent, INCLUDE)]
            pending += [c for c in candidates if c.is_file()][:1]
    return list(found)


def _compile(kernel: Kernel, arch: str) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    if int(re.search(r"\d+", arch).group()) not in (supported := nvrtc_architectures()):
        raise BuildError(f"{kernel.name}: this NVRTC targets {supported}, not {arch}; CUDA 12.9 is the last for sm_70")
    options = ProgramOptions(
        name=kernel.file.name,
        arch=arch,
        include_path=[str(kernel.file.parent), str(INCLUDE), str(_cuda_headers())],
        define_macro=[(name, str(value)) for name, value in kernel.macros] or None,
        no_cache=True,  # NVRTC's own gives no log for a source that another of its kernels was built from
        **_OPTIONS,
    )
    log = io.StringIO()
    try:
        code = Program(kernel.file.read_text(), "c++", options).compile("cubin", logs=log).code
    except Exception as error:  # cuda.core raises its own and the bindings' types
        raise BuildError(f"{kernel.name} for {arch}: {error}\n{log.getvalue()}".rstrip("\0\n")) from error
    return code, log.getvalue()


def nvrtc_architectures() -> list[int]:
    """Compute capabilities that the installed NVRTC can target, as 70, 80, 90. Raises BuildError without NVRTC."""
    _nvrtc_version()
    from cuda.bindings import nvrtc

    return nvrtc.nvrtcGetSupportedArchs()[1]


def _nvrtc_version() -> tuple[int, int]:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise BuildError(f"NVRTC is missing ({error}); install nvidia-cuda-nvrtc-cu12, or nvidia-cuda-nvrtc") from error
    return major, minor


def _cuda_headers() -> Path:
    """The folder with cuda_fp16.h that belongs to NVRTC's major version: a wheel's, else a toolkit's."""
    major, _ = _nvrtc_version()
    wheel = "cuda_runtime" if major == 12 else f"cu{major}"
    nvidia = importlib.util.find_spec("nvidia")
    folders = [Path(root) / wheel / "include" for root in (nvidia.submodule_search_locations if nvidia else ())]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders += [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    for folder in folders:
        if (folder / "cuda_fp16.h").is_file():
            return folder
    raise BuildError(f"no CUDA {major} headers; install nvidia-cuda-runtime for CUDA {major}, or set CUDA_HOME")


def _parse_resources(log: str, kernel: Kernel) -> Resources:
    def number(pattern: str, default: int | None = None) -> int:
        match = re.search(pattern, properties)
        if match is None and default is None:
            raise BuildError(f"{kernel.name}: ptxas reported no {pattern!r}:\n{log}")
        return default if match is None else int(match.group(1))

    _, _, properties = log.partition(f"Compiling entry function '{kernel.entry}'")
    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        static_shared_bytes=number(r"(\d+) bytes smem", default=0),
        stack_bytes=number(r"(\d+) bytes stack frame"),
    )


def _store(entry: Path, code: bytes, resources: Resources) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".partial-", dir=entry.parent))
    (temporary / "kernel.cubin").write_bytes(code)
    (temporary / "resources.json").write_text(json.dumps(asdict(resources)))
    try:
        temporary.rename(entry)
    except OSError:  # another process has stored the same entry meanwhile
        shutil.rmtree(temporary)
        if not entry.is_dir():
            raise
