"""Import a heavy module on first use, so that reading a config or drawing a figure costs no torch import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    """Stands in for a module of its name. It is not put in sys.modules: other packages look there for torch
    (matplotlib does, for every array it gets), and would load it by looking."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self.__name__), attribute)


def lazy_import(name: str) -> ModuleType:
    """Return module `name`, or a stand-in whose first attribute access imports it.

    Raises ModuleNotFoundError at once when the module is not installed.
    """
    if name in sys.modules:
        return sys.modules[name]
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _Lazy(name)
