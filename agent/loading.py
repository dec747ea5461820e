"""Finding the agent that a command names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from sandbox.errors import ErrorCode, SandboxError

from .loop import Agent


def load(target: str) -> Agent:
    """The agent that ``module:attribute`` or ``file.py:attribute`` names; a callable is called without arguments.

    Raises SandboxError ``invalid_configuration``.
    """
    hint = "Name it as module:attribute or path/to/file.py:attribute, an Agent or a function that makes one."
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise SandboxError(ErrorCode.invalid_configuration, f"{target!r} names no agent.", hint)
    try:
        found: Any = getattr(_module(where), attribute)
        agent = found() if callable(found) and not isinstance(found, Agent) else found
    except SandboxError:
        raise
    except Exception as error:
        what = f"{target} cannot be loaded: {type(error).__name__}: {error}."
        raise SandboxError(ErrorCode.invalid_configuration, what, hint) from error
    if not isinstance(agent, Agent):
        raise SandboxError(ErrorCode.invalid_configuration, f"{target} is no Agent but {type(agent).__name__}.", hint)
    return agent


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does: modules of the present folder
        try:
            return importlib.import_module(where)
        finally:
            sys.path.remove("")
    path = Path(where)
    spec = importlib.util.spec_from_file_location(f"gamebox_checked_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SandboxError(ErrorCode.invalid_configuration, f"There is no file {where}.", "Check the path.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
