"""Keep documented module paths of version 0.1.0 working for one release; each import of one warns."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from types import ModuleType

MOVED = {
    "sandbox.docker.side": "sandbox.docker.services.running",
    "sandbox.guest_environment": "sandbox.environment.sandboxed",
    "sandbox.results": "sandbox.operations",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answer an import of an old path by a module that looks its names up in the new one."""

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = importlib.import_module(MOVED[module.__name__])
        message = f"{module.__name__} is now {new.__name__}; the old path goes with the next release."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        module.__getattr__ = lambda name: getattr(new, name)  # type: ignore[method-assign]


def keep_old_paths() -> None:
    """Make the old paths importable. Does nothing the second time."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
