"""The arguments of every operation as the guest takes them: types and bounds, whatever came over the pipe."""

from __future__ import annotations

from ..protocol.faults import Fault
from ..protocol.records import HOME, WORKSPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any], bool]

MOST = 1 << 62
# Beyond this no timer is set, for a year has fewer.
MOST_SECONDS = 1e8
MOST_PATTERN = 1000
MOST_USER = 256
ROOTS = (WORKSPACE, HOME)
NAMED_SIGNALS = frozenset(
    {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGWINCH"}
)


def check_arguments(operation: Any, args: dict[str, Any]) -> None:
    """Raises Fault: ``unknown_tool`` for what is no name; ``invalid_arguments`` where one is missing, or cannot be given.

    Operations that have no row here check their arguments themselves.
    """
    if not isinstance(operation, str):
        raise Fault("unknown_tool", name=str(operation)[:100])
    required, others = _ARGUMENTS.get(operation, ({}, {}))
    for name, check in required.items():
        if name not in args or not check(args[name]):
            _refuse(operation, name, args)
    for name, check in others.items():
        if name in args and not check(args[name]):
            _refuse(operation, name, args)
    if operation == "run":
        _check_run(args)
    elif operation == "wait_for":
        _check_wait(args)


# Arguments of operations for callers that are paths in the sandbox.
_PATHS = ("path", "source", "target", "cwd", "file")


def expand_home(args: dict[str, Any], home: str) -> None:
    """Replace "~" and "~/..." in paths by the home, as a shell does: taken literally, they make a folder of that name."""
    for name in _PATHS:
        value = args.get(name)
        if isinstance(value, str) and (value == "~" or value.startswith("~/")):
            args[name] = home + value[1:]


def _check_run(args: dict[str, Any]) -> None:
    if not args.get("argv") and args.get("command") is None:
        _refuse("run", "command", args)
    for name in ("rows", "cols") if args.get("pty") else ():
        if args.get(name) is None:
            _refuse("run", name, args)


def _check_wait(args: dict[str, Any]) -> None:
    given = [name for name in ("port", "log", "file", "exit") if args[name] not in (None, False)]
    if len(given) != 1:
        raise Fault("invalid_arguments", problem=f"wait_for cannot wait for {' and '.join(given) or 'nothing'}")
    if given[0] in ("log", "exit") and args["id"] is None:
        _refuse("wait_for", "id", args)


def _refuse(operation: str, name: str, args: dict[str, Any]) -> None:
    given = f"be {args[name]!r:.80}" if name in args else "be missing"
    raise Fault("invalid_arguments", problem=f"{name} of {operation} cannot {given}")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _user(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_USER


def _bytes_as_text(value: Any) -> bool:
    """Whether it is text that stands for bytes: UTF-8, or surrogate escapes."""
    try:
        return isinstance(value, str) and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _mode(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 0o777


def _offset(value: Any) -> bool:
    return type(value) is int and -MOST < value < MOST


def _length(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1000


def _port(value: Any) -> bool:
    return type(value) is int and 0 < value < 65536


def _pattern(value: Any) -> bool:
    return _bytes_as_text(value) and 0 < len(value) <= MOST_PATTERN


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_SECONDS


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_bytes_as_text, value))


def _variables(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_bytes_as_text, value.values())) and all(map(_bytes_as_text, value))


def _stdin(value: Any) -> bool:
    return isinstance(value, bytes) or _bytes_as_text(value)


def _signal(value: Any) -> bool:
    return isinstance(value, str) and value in NAMED_SIGNALS


def _kind(value: Any) -> bool:
    return value in ("file", "tree")


def _roots(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each in ROOTS for each in value)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(ROOTS) and all(map(_count, value))


def _sessions(value: Any) -> bool:
    """Whether it is one thing by name; what each has to have, the handler says."""
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())


def _maybe(check: Check) -> Check:
    """The same check for an argument that may be null."""
    return lambda value: value is None or check(value)


# By operation: what has to be there, and what may be missing.
_ARGUMENTS: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "read": (
        {"path": _text},
        {
            "start_line": _maybe(_count), "end_line": _maybe(_count), "offset": _maybe(_count), "max_bytes": _maybe(_count),
            "numbered": _flag,
        },
    ),
    "write": ({"path": _text, "content": _text}, {}),
    "edit": ({"path": _text, "old_text": _text, "new_text": _text}, {"replace_all": _flag}),
    "list": ({}, {"path": _text, "depth": _length, "hidden": _flag, "max_entries": _count}),
    "search": (
        {"pattern": _text},
        {
            "path": _text, "glob": _maybe(_text), "literal": _flag, "ignore_case": _flag, "context_lines": _count,
            "max_matches": _count,
        },
    ),
    "stat": ({"path": _text}, {}),
    "make_dir": ({"path": _text}, {}),
    "move": ({"source": _text, "target": _text}, {"overwrite": _flag}),
    "delete": ({"path": _text}, {"recursive": _flag}),
    "upload": ({"path": _text}, {"kind": _kind, "mode": _maybe(_mode)}),
    "download": ({"path": _text}, {}),
    "browse": ({"url": _text}, {"offset": _count, "max_chars": _count, "raw": _flag, "timeout_seconds": _seconds}),
    "run": (
        {"keep_output_bytes": _count, "timeout_seconds": _maybe(_seconds)},
        {
            "command": _maybe(_bytes_as_text), "argv": _maybe(_texts), "cwd": _maybe(_bytes_as_text), "env": _maybe(_variables),
            "stdin": _maybe(_stdin), "cpu_seconds": _maybe(_seconds), "background": _flag, "session": _maybe(_text),
            "wait_seconds": _maybe(_seconds), "pty": _flag,
            "rows": _length, "cols": _length, "stays_open": _flag, "user": _maybe(_user),
            "needs_session": _flag,
        },
    ),
    "logs": (
        {"id": _text, "offset": _offset, "max_bytes": _count, "follow": _flag, "wait_seconds": _seconds},
        {"tail_lines": _maybe(_count)},
    ),
    "kill": ({"id": _text}, {"signal": _maybe(_signal), "user": _maybe(_user)}),
    "open_session": ({"session": _text}, {"user": _maybe(_user)}),
    "end_session": ({"session": _text}, {"user": _maybe(_user)}),
    "sessions": ({}, {"user": _maybe(_user)}),
    "send": (
        {"id": _text, "text": _bytes_as_text, "keys": _texts, "eof": _flag, "wait_seconds": _seconds},
        {"application_keys": _flag, "user": _maybe(_user)},
    ),
    "resize": ({"id": _text, "rows": _length, "cols": _length}, {"user": _maybe(_user)}),
    "screen": ({"id": _text, "offset": _count, "max_bytes": _count}, {}),
    "wait_for": (
        {
            "timeout_seconds": _seconds, "id": _maybe(_text), "port": _maybe(_port), "host": _maybe(_text),
            "log": _maybe(_pattern), "literal": _flag, "offset": _offset, "file": _maybe(_text), "contains": _maybe(_bytes_as_text),
            "exit": _flag,
        },
        {},
    ),
    "processes": ({"id": _maybe(_text)}, {}),
    "usage": ({}, {}),
    "resumed": ({"seconds": _seconds}, {}),
    "scan": ({"roots": _roots}, {"sessions": _flag}),
    "restore": ({"sizes": _sizes}, {"path": _text, "sessions": _maybe(_sessions)}),
}  # fmt: skip
