"""Keep module paths and error codes of version 0.1.0 working for one release; each use of one warns."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Mapping
from enum import StrEnum
from types import ModuleType
from typing import Any

MOVED = {
    "sandbox.docker.side": "sandbox.docker.services.running_service",
    "sandbox.guest_environment": "sandbox.environment.sandboxed",
    "sandbox.results": "sandbox.operations",
}
# Members of ``ErrorCode`` that are members of ``agent.errors.AgentErrorCode`` now.
MOVED_CODES = frozenset(
    {
        "model_unavailable",
        "model_credentials_missing",
        "model_rejected_request",
        "context_window_exceeded",
        "real_calls_forbidden",
        "apply_refused",
        "delegation_refused",
        "delegate_not_finished",
        "read_only",
        "tasks_open",
        "lint_errors",
        "no_open_file",
        "kernel_died",
        "log_unusable",
        "run_not_found",
        "run_in_use",
        "run_not_resumable",
        "effects_unknown",
        "approval_pending",
        "finish_refused",
    }
)


class _Finder:
    """Answer an import of an old path with a module that looks its names up in the new one. A finder and its loader.

    Not by the classes of importlib.abc, which take a third of the time of ``import sandbox``.
    """

    def __init__(self, moved: Mapping[str, str]) -> None:
        self.moved = moved

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        # A package with an empty path: of what was below it, only the paths in ``moved`` can be imported. A module that was loaded
        # once more would have classes that equal none.
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname in self.moved else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Have Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        new = importlib.import_module(self.moved[module.__name__])
        message = f"{module.__name__} is now {new.__name__}; the old path goes with the next release."
        warnings.warn(message, DeprecationWarning, stacklevel=2)

        def find(name: str) -> Any:
            return getattr(new, name)

        module.__getattr__ = find  # type: ignore[method-assign]


def keep_old_paths(moved: Mapping[str, str]) -> None:
    """Make the old paths in ``moved`` importable. Does nothing the second time for the same paths."""
    if not any(isinstance(finder, _Finder) and finder.moved is moved for finder in sys.meta_path):
        # First: a folder that an earlier checkout left behind must not be found as an empty package.
        sys.meta_path.insert(0, _Finder(moved))


def moved_error_code(name: str) -> StrEnum:
    """Return the code of the agent that ``ErrorCode.name`` was, with a warning. Raises AttributeError for any other name."""
    if name not in MOVED_CODES:
        raise AttributeError(f"ErrorCode has no member {name!r}")
    message = f"ErrorCode.{name} is now agent.errors.AgentErrorCode.{name}; the old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    # By name, since the sandbox does not depend on the agent; they are distributed together.
    code: StrEnum = importlib.import_module("agent.errors").AgentErrorCode(name)
    return code
