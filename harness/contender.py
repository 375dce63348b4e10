"""The contract of a contender, and how contenders are found.

One file, one contender (or one family that shares everything but a constant): a class below `Contender`
in `baselines/<op>/*.py`, in `impl/<system>/contender.py`, or in a folder that the config names.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from harness.errors import ConfigError
from harness.paths import ROOT

if TYPE_CHECKING:
    from torch import Tensor

    from harness.ops.base import Tensors

Backend = Literal["reference", "emulated", "kernel", "library"]
Role = Literal["ours", "baseline", "control"]


@dataclass(frozen=True)
class Target:
    """The device a case runs on. `capability` is (0, 0) on a CPU."""

    device: Literal["cpu", "cuda"]
    name: str
    capability: tuple[int, int] = (0, 0)
    memory_bytes: int = 0

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"


class Unsupported(Exception):
    """Raised by `prepare` where only the library itself can tell that it does not take the case; says why."""


@dataclass
class Prepared:
    """A contender ready to be timed.

    `run()` does the op's work once, on the current stream, and returns its outputs by name. It allocates
    nothing that grows, converts nothing, and can be captured in a CUDA graph unless `graphable` is False.
    """

    run: Callable[[], dict[str, Tensor]]
    backend: Backend
    kernel_arch: str | None = None  # architecture the source was written for: "sm_70"
    built_arch: str | None = None  # architecture it was compiled for
    kernel_hash: str | None = None  # of the compiled kernel's source and options
    variant: str | None = None  # what distinguishes it within a family: "fp16 accumulate"
    tuning: dict[str, Any] = field(default_factory=dict)  # algorithm, split-K, tile: whatever was chosen
    graphable: bool = True
    bytes_floor: int | None = None  # fewest bytes one call moves in this contender's format, where it is not the op's
    format_bytes: int | None = None  # size of the converted operand
    conversion_s: float | None = None  # time of converting it
    expected: dict[str, Tensor] | None = None  # outputs to match bit for bit, where they are not the op's (a copy)
    no_times: str | None = None  # reason why its times mean nothing here (an emulation)
    resident_bytes: int | None = None  # memory that it holds from here on, where that is much: weights and caches
    parts: dict[str, Callable[[], dict[str, Tensor]]] = field(default_factory=dict)  # of the call, timed apart
    note: str | None = None  # shown in reports: "the same kernel as sdpa_efficient"


class Contender(ABC):
    """One way to compute an op.

    Class attributes name it; the two `un...` methods answer None or a reason that a person can act on.
    Heavy packages are imported inside methods.
    """

    name: ClassVar[str]
    op: ClassVar[str]
    role: ClassVar[Role]
    label: ClassVar[str]  # short, for legends
    summary: ClassVar[str]  # one line, for `voltabench doctor` and the README
    source: ClassVar[str]  # paper, package or documentation it stands for
    sources: ClassVar[tuple[str, ...]] = ()  # files and folders (from the repository root) its results depend on

    def unavailable(self, target: Target) -> str | None:
        """Why this contender cannot run at all on `target` (missing package, GPU), and how to get it."""
        return None

    def unsupported(self, params: Any, target: Target) -> str | None:
        """Why this contender cannot run this case on `target`, though it is available."""
        return None

    @abstractmethod
    def prepare(self, params: Any, inputs: Tensors, target: Target) -> Prepared:
        """Convert, compile and plan; timed as set-up. Outputs are not computed here.

        The inputs are shared with the other contenders: neither this nor the call may write to them.
        """

    def refusal(self, params: Any, target: Target) -> tuple[Literal["unavailable", "unsupported"], str] | None:
        """The status and reason of a case that is not to be prepared, or None. The one place to ask."""
        if reason := self.unavailable(target):
            return "unavailable", reason
        if target.is_cuda and params.dtype == "bfloat16" and target.capability < (8, 0):
            return "unsupported", f"bfloat16 needs compute capability 8.0 or newer, {target.name} has none; use float16"
        if reason := self.unsupported(params, target):
            return "unsupported", reason
        return None

    def reference_case(self, params: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        """The params and inputs whose reference the outputs must match: the case itself, save for a yardstick
        that does other work (a dense kernel beside block-sparse ones)."""
        return params, inputs

    def code_hash(self) -> str:
        """Hash of the contender's own file and `sources`; a record of other code is measured again."""
        return hash_sources([Path(inspect.getfile(type(self))), *(ROOT / source for source in self.sources)])


def hash_sources(paths: Iterable[Path]) -> str:
    """Hash of these files, and of the sources below these folders."""
    kept = (".py", ".cu", ".cuh", ".h", ".cpp")
    found = {f for p in paths for f in ([p] if p.is_file() else p.rglob("*")) if f == p or f.suffix in kept}
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _load(path: Path) -> ModuleType:
    relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else None
    if relative is not None:
        return importlib.import_module(".".join(relative.with_suffix("").parts))
    name = f"voltabench_user_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ConfigError(f"contender_folders: {path}: {type(error).__name__}: {error}") from error
    return sys.modules[name]


def contender_files(folders: Iterable[Path] = ()) -> list[Path]:
    files = [*ROOT.glob("baselines/*/*.py"), *ROOT.glob("impl/*/contender.py")]
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigError(f"contender_folders: no folder {folder}; name an existing one")
        files += Path(folder).resolve().glob("*.py")
    return sorted(f for f in files if not f.name.startswith("_"))


def _check_contract(path: Path, cls: type[Contender]) -> None:
    """Raises ConfigError for a class with a name that lacks something else, or whose op or role is none."""
    from harness.ops import OPS  # which build upon this module

    lacking = [name for name in ("op", "role", "label", "summary", "source") if not hasattr(cls, name)]
    lacking += sorted(cls.__abstractmethods__)
    if lacking:
        raise ConfigError(f"{path}: {cls.__name__} lacks {', '.join(lacking)}; see Contender in harness/contender.py")
    for what, given, known in (("op", cls.op, sorted(OPS)), ("role", cls.role, get_args(Role))):
        if given not in known:
            raise ConfigError(f"{path}: {cls.__name__}.{what} is {given!r}; known: {', '.join(known)}")


@functools.cache
def discover(folders: tuple[Path, ...] = ()) -> dict[str, dict[str, Contender]]:
    """All contenders as `{op: {name: instance}}`, from the repository and the given folders.

    Raises ConfigError when two contenders of one op share a name, or a user's file does not load or has a contender
    that lacks something of the contract.
    """
    found: dict[str, dict[str, Contender]] = {}
    for path in contender_files(folders):
        module = _load(path)
        for cls in vars(module).values():
            if not (inspect.isclass(cls) and issubclass(cls, Contender)) or cls.__module__ != module.__name__:
                continue
            if not hasattr(cls, "name") or (cls.__name__.startswith("_") and not hasattr(cls, "op")):
                continue  # what several share
            _check_contract(path, cls)
            by_name = found.setdefault(cls.op, {})
            if cls.name in by_name:
                raise ConfigError(f"{path}: a contender named {cls.name!r} exists for op {cls.op!r}; rename one")
            by_name[cls.name] = cls()
    return found
