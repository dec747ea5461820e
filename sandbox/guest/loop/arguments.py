"""Checks of single arguments, whatever came over the pipe: types and bounds. ``operations`` says which argument has which."""

from __future__ import annotations

from ..protocol.faults import Fault
from ..protocol.records import HOME, WORKSPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any], bool]

MOST = 1 << 62
# No timer is set for longer: a year has fewer seconds.
MOST_SECONDS = 1e8
MOST_PATTERN = 1000
MOST_USER = 256
MOST_STEPS = 50
ROOTS = (WORKSPACE, HOME)
NAMED_SIGNALS = frozenset(
    {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGWINCH"}
)
# Arguments of operations for callers that are paths in the sandbox.
_PATHS = ("path", "source", "target", "cwd", "file")


def expand_home(args: dict[str, Any], home: str) -> None:
    """Replace "~" and "~/..." in paths by the home, as a shell does: taken literally, they make a folder of that name."""
    for name in _PATHS:
        value = args.get(name)
        if isinstance(value, str) and (value == "~" or value.startswith("~/")):
            args[name] = home + value[1:]


def refuse(operation: str, name: str, args: dict[str, Any]) -> None:
    """Raise Fault ``invalid_arguments`` that names the argument and its value."""
    given = f"be {args[name]!r:.80}" if name in args else "be missing"
    raise Fault("invalid_arguments", problem=f"{name} of {operation} cannot {given}")


def check_run(args: dict[str, Any]) -> None:
    """Raise Fault if a run has nothing to run, or a terminal without a size."""
    if not args.get("argv") and args.get("command") is None:
        refuse("run", "command", args)
    for name in ("rows", "cols") if args.get("pty") else ():
        if args.get(name) is None:
            refuse("run", name, args)


def check_wait(args: dict[str, Any]) -> None:
    """Raise Fault unless there is exactly one condition to wait for, with the command that it is about."""
    given = [name for name in ("port", "log", "file", "exit") if args[name] not in (None, False)]
    if len(given) != 1:
        raise Fault("invalid_arguments", problem=f"wait_for cannot wait for {' and '.join(given) or 'nothing'}")
    if given[0] in ("log", "exit") and args["id"] is None:
        refuse("wait_for", "id", args)


def maybe(check: Check) -> Check:
    """Return the same check for an argument that may be null."""
    return lambda value: value is None or check(value)


def text(value: Any) -> bool:
    """Return whether it is text."""
    return isinstance(value, str)


def user(value: Any) -> bool:
    """Return whether it can name a user."""
    return isinstance(value, str) and 0 < len(value) <= MOST_USER


def bytes_as_text(value: Any) -> bool:
    """Return whether it is text that stands for bytes: UTF-8, or surrogate escapes."""
    try:
        return isinstance(value, str) and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def flag(value: Any) -> bool:
    """Return whether it is true or false."""
    return isinstance(value, bool)


def count(value: Any) -> bool:
    """Return whether it is a number of things."""
    return type(value) is int and 0 <= value < MOST


def mode(value: Any) -> bool:
    """Return whether it can be the permissions of a file."""
    return type(value) is int and 0 <= value <= 0o777


def offset(value: Any) -> bool:
    """Return whether it is a place in an output, counted from its start or (negative) its end."""
    return type(value) is int and -MOST < value < MOST


def length(value: Any) -> bool:
    """Return whether it is a small number of lines, columns or levels."""
    return type(value) is int and 1 <= value <= 1000


def port(value: Any) -> bool:
    """Return whether it is a TCP port."""
    return type(value) is int and 0 < value < 65536


def pattern(value: Any) -> bool:
    """Return whether it can be a regular expression, which the guest compiles itself."""
    return bytes_as_text(value) and 0 < len(value) <= MOST_PATTERN


def seconds(value: Any) -> bool:
    """Return whether a timer can be set for it."""
    return type(value) in (int, float) and 0 <= value <= MOST_SECONDS


def texts(value: Any) -> bool:
    """Return whether it is a list of texts that stand for bytes."""
    return isinstance(value, list) and all(map(bytes_as_text, value))


def steps(value: Any) -> bool:
    """Return whether it is a list of steps in a page."""
    return isinstance(value, list) and 0 < len(value) <= MOST_STEPS and all(isinstance(each, dict) for each in value)


def variables(value: Any) -> bool:
    """Return whether it maps names of environment variables to values."""
    return isinstance(value, dict) and all(map(bytes_as_text, value.values())) and all(map(bytes_as_text, value))


def attributes(value: Any) -> bool:
    """Return whether it maps names of extended attributes of the namespace ``user`` to values."""
    return variables(value) and all(name.startswith("user.") for name in value)


def limits(value: Any) -> bool:
    """Return whether it maps names of limits to values, which are the host's own."""
    return isinstance(value, dict)


def stdin(value: Any) -> bool:
    """Return whether a command can read it."""
    return isinstance(value, bytes) or bytes_as_text(value)


def signal_name(value: Any) -> bool:
    """Return whether it is one of the signals that a caller may send."""
    return isinstance(value, str) and value in NAMED_SIGNALS


def transfer_kind(value: Any) -> bool:
    """Return whether it says what is uploaded."""
    return value in ("file", "tree")


def roots(value: Any) -> bool:
    """Return whether it is a list of roots, by number."""
    return isinstance(value, list) and all(type(each) is int and each in ROOTS for each in value)


def sizes(value: Any) -> bool:
    """Return whether it has a size for each root."""
    return isinstance(value, list) and len(value) == len(ROOTS) and all(map(count, value))


def sessions(value: Any) -> bool:
    """Return whether it maps names of sessions to their fields, which the handler checks."""
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
