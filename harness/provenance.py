"""Where a number comes from: commit, config, GPU, driver, and the libraries that were really loaded.

Nothing here names a person, a host or a path.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.machine import cpu_name
from harness.paths import ROOT

if TYPE_CHECKING:
    from harness.config import Config

PACKAGES = {  # module: distribution; told when the module was imported
    "torch": "torch",
    "triton": "triton",
    "xformers": "xformers",
    "flash_attn.flash_attn_interface": "flash-attn",
    "flash_attn.cute": "flash-attn-4",
    "fa3_fwd_interface": "fa3-fwd",
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "numpy": "numpy",
}


def commit() -> str | None:
    """Git commit of the code, with -dirty when tracked files other than results differ from it; None outside git."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return head if changed == "" else f"{head}-dirty"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def short_hash(text: str) -> str:
    """Names a thing (a GPU's UUID, a config) without telling it."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def config_hash(config: Config) -> str:
    return short_hash(json.dumps(config.model_dump(mode="json"), sort_keys=True))


def library_versions() -> dict[str, str]:
    """Versions of the Python packages imported and the CUDA libraries loaded by this process so far."""
    versions = {"python": platform.python_version()}
    for module, distribution in PACKAGES.items():
        if module in sys.modules:
            versions[distribution] = _distribution_version(distribution, module)
    maps = Path("/proc/self/maps")
    loaded = maps.read_text() if maps.exists() else ""
    for name, ask in CUDA_LIBRARIES.items():
        paths = sorted(set(re.findall(rf"/.*/lib{name}\.so[.\d]*$", loaded, re.MULTILINE)))
        if paths:
            versions[name] = " and ".join(_library_version(path, ask) for path in paths)
    return versions


def _distribution_version(distribution: str, module: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules[module], "__version__", "unknown")


def _library_version(path: str, ask: Callable[[ctypes.CDLL], str]) -> str:
    try:
        return ask(ctypes.CDLL(path))
    except (OSError, AttributeError) as error:
        return f"unknown ({type(error).__name__})"


def _packed(function: str) -> Callable[[ctypes.CDLL], str]:
    """Version that a function writes to an int as major * 1000 + minor * 10."""

    def ask(library: ctypes.CDLL) -> str:
        value = ctypes.c_int()
        getattr(library, function)(ctypes.byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    return ask


def _properties(function: str) -> Callable[[ctypes.CDLL], str]:
    """Version that a function tells part by part: 0 major, 1 minor, 2 patch."""

    def ask(library: ctypes.CDLL) -> str:
        parts = []
        for part in range(3):
            value = ctypes.c_int()
            getattr(library, function)(part, ctypes.byref(value))
            parts.append(str(value.value))
        return ".".join(parts)

    return ask


def _cudnn(library: ctypes.CDLL) -> str:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    value = library.cudnnGetVersion()
    return f"{value // 10000}.{value % 10000 // 100}.{value % 100}"


def _nvrtc(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


CUDA_LIBRARIES: dict[str, Callable[[ctypes.CDLL], str]] = {
    "cudart": _packed("cudaRuntimeGetVersion"),
    "cublas": _properties("cublasGetProperty"),
    "cusparse": _properties("cusparseGetProperty"),
    "cudnn": _cudnn,
    "nvrtc": _nvrtc,
}


def host() -> dict[str, Any]:
    """The machine without its name."""
    return {"cpu": cpu_name(), "system": platform.system(), "architecture": platform.machine()}
