"""Types of arguments, checked by calls that would otherwise fail somewhere inside, or keep what is wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from sandbox.text.wording import value_text

from .errors import ErrorCode, OperationError, SandboxError

# What a path of the host may be given as.
HOST_PATH: Any = str | os.PathLike

UNLIMITED = "unlimited"

_NAMES: dict[Any, str] = {NoneType: "None", os.PathLike: "a path", int: "an int", float: "a float"}


def check_types(call: str, **given: tuple[object, type | UnionType]) -> None:
    """Raise TypeError, naming the first argument that is not of its type: ``check_types("mark", name=(name, str | None))``.

    True and False are no numbers.
    """
    for name, (value, wanted) in given.items():
        if isinstance(value, wanted) and not isinstance(value, bool):
            continue
        kinds = get_args(wanted) or (wanted,)
        if not isinstance(value, wanted) or (bool not in kinds and object not in kinds):
            names = " or ".join(_NAMES.get(kind, f"a {kind.__name__}") for kind in kinds)
            raise TypeError(f"{call}(): {name} must be {names}, not {type(value).__name__}.")


def number_as_text(value: Any) -> Any:
    """Return the number of a user as text, and anything else as it is."""
    return str(value) if type(value) is int else value


def seconds_or_unlimited(value: Any) -> Any:
    """Return infinity for "unlimited", and refuse infinity itself, which JSON cannot write. A model's schema has neither."""
    if value == math.inf:
        raise ValueError('write "unlimited" for no limit')
    return math.inf if value == UNLIMITED else value


def check_host_path(path: str | os.PathLike[str]) -> None:
    """Raise OperationError ``path_invalid`` for what no file of this host can be named."""
    text = os.fspath(path)
    why = "it has a NUL character" if "\0" in text else ""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        why = "it has characters that cannot be written"
    if why:
        raise OperationError(
            ErrorCode.path_invalid, f"{value_text(text)} cannot be a path of this host: {why}.", "Give another path."
        )


def check_callable(call: str, name: str, value: object) -> None:
    """Raise TypeError if the argument is neither None nor a function."""
    if value is not None and not callable(value):
        raise TypeError(f"{call}(): {name} must be a function or None, not {type(value).__name__}.")


def path_is(path: str | os.PathLike[str], look: Callable[[Path], bool]) -> bool:
    """Return ``look(path)``; False also if the system refuses the path as too long."""
    try:
        return look(Path(path))
    except (OSError, ValueError):
        return False


def is_writable(text: str) -> bool:
    """Return whether the text can be written as UTF-8, which half of a pair of surrogates cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_variables(call: str, env: Mapping[str, str]) -> None:
    """Raise TypeError for anything but text, SandboxError ``invalid_configuration`` for what cannot be a variable."""
    for name, value in env.items():
        check_types(call, env=(name, str))
        check_types(call, **{f"env[{value_text(name)}]": (value, str)})
        if not name or "=" in name or "\0" in name + value or not is_writable(name + value):
            problem = f"{value_text(name)} cannot be a variable, or its value cannot."
            raise SandboxError(ErrorCode.invalid_configuration, problem, "Give another name or value, without NUL.")
