"""Sessions: a working folder, variables and functions that carry over from one command to the next.

Every command gets a shell of its own, which starts from the session's state and, when it ends, leaves its state in a memory
file. So there is no long-lived shell that a timeout, an ``exit`` or a syntax error could take away.
"""

from __future__ import annotations

import os
import re
from collections import deque

from . import shell_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..users import User

    # folder, exported variables, functions as text for a shell, variables that are not exported
    State = tuple[str, dict[str, str], str, dict[str, str]]

STATE_LIMIT = 1 << 20
# Variables the shell keeps for itself; the session has no use for them.
_OWN = {"_", "SHLVL", "PWD", "OLDPWD", "BASHPID", "GAMEBOX_STATE", "SHELLOPTS", "BASHOPTS"}
# The kernel starts no program with a longer "NAME=value" (MAX_ARG_STRLEN): kept, it would end the session.
LONGEST_VARIABLE = (128 << 10) - 1
_SHELLS = (("/bin/bash", 199), ("/usr/bin/bash", 199), ("/bin/sh", 9), ("/usr/bin/sh", 9))

# Of a command whose shell was replaced or killed: whether something of the session is lost by that.
_CHANGES = re.compile(
    r"(?:^|[;&|({\s])(?:(?:cd|pushd|popd|export|declare|source|unset|alias|\.)\s|[A-Za-z_][A-Za-z0-9_]*=\S*\s*(?:;|\n|&|$))"
)

# Saves the state after the command, or on the way out where the command leaves by itself (exit, set -e). A command that
# sets an EXIT trap of its own keeps it. Nothing here starts a process. All of it is one line: the shell counts the command's
# lines from 1, and after a command with an unclosed quote bash would not understand a further line.
_PRELUDE = (
    """__gamebox_save() { [ "${__gamebox_saved-}" ] || { """
    """BUILTINprintf '%s\\0' "$PWD"; BUILTINexport -p; BUILTINprintf '\\0'; """
    """DUMP; } >&FD; } 2>/dev/null; """
    """trap '{ set +x; } 2>/dev/null; __gamebox_save' EXIT; __gamebox_command=$1; shift; RESTOREeval "$__gamebox_command"; """
    """{ __gamebox_status=$?; set +x; __gamebox_save; __gamebox_saved=1; } 2>/dev/null; exit $__gamebox_status"""
)


class Session:
    """State and queue of one session; ``busy`` while a foreground command of it runs, ``holder`` is the id of the last one.

    ``user`` is who its commands run as; None for the sandbox's own user.
    """

    __slots__ = ("busy", "cwd", "env", "functions", "holder", "user", "variables", "waiting")

    def __init__(self, cwd: str, env: dict[str, str], user: User | None = None) -> None:
        self.user = user
        self.cwd = cwd
        self.env = env
        self.functions = ""
        self.variables: dict[str, str] = {}  # not exported
        self.busy = False
        self.holder: str | None = None
        self.waiting: deque[Callable[[], None]] = deque()


def find_shell() -> tuple[str, int] | None:
    """Path of the shell and the descriptor for its state; None in an image without one."""
    for path, fd in _SHELLS:
        if os.access(path, os.X_OK):
            return path, fd
    return None


def shell_argv(shell: str, fd: int, command: str, carried: tuple[str, ...] | list[str] = ()) -> list[str]:
    """The argv that runs ``command`` and leaves the state on ``fd``; ``carried`` is what ``shell_state.restoring`` made."""
    name = os.path.basename(shell)
    bash = name == "bash"
    text = _PRELUDE.replace("FD", str(fd)).replace("BUILTIN", "builtin " if bash else "")
    text = text.replace("DUMP", shell_state.DUMP if bash else shell_state.DUMP_NOTHING)
    text = text.replace("RESTORE", shell_state.RESTORE if bash and carried else "")
    return [shell, "-c", text, name, command, *(carried if bash else ())]


def changes_state(command: str) -> bool:
    """Whether a command looks as if it changed the folder, variables or functions of its shell."""
    return _CHANGES.search(command) is not None


def parse_state(data: bytes) -> State | None:
    """The state in what the shell left; None where that is not whole (the command overwrote it)."""
    parts = data[:STATE_LIMIT].split(b"\0")
    if len(parts) < 5 or not parts[-5].startswith(b"/"):
        return None
    cwd, exports, functions, variables = map(os.fsdecode, parts[-5:-1])
    env = parse_exports(exports)
    if not env:
        return None
    return cwd, env, shell_state.functions_of(functions), shell_state.variables_of(variables, _unquote)


def parse_exports(text: str) -> dict[str, str]:
    """Variables in the output of ``export -p`` of bash (``declare -x A="b"``) or a POSIX shell (``export A='b'``)."""
    found: dict[str, str] = {}
    position = 0
    while match := _DECLARATION.search(text, position):
        name, position = match.group(1), match.end()
        if match.group(2):
            value, position = _unquote(text, position)
            if name not in _OWN and not name.startswith("__gamebox"):
                found[name] = value
    return found


_DECLARATION = re.compile(r"^(?:declare -[a-zA-Z]*x[a-zA-Z]*|export) ([A-Za-z_][A-Za-z0-9_]*)(=?)", re.MULTILINE)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "E": "\x1b", "e": "\x1b"}
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)'|\\(.)|([^\s'"\\$]+)""", re.DOTALL)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)


def _unquote(text: str, position: int) -> tuple[str, int]:
    """The shell word at ``position`` and where it ends."""
    word: list[str] = []
    while match := _PIECE.match(text, position):
        single, double, ansi, escaped, plain = match.groups()
        if double is not None:
            word.append(re.sub(r'\\([$`"\\\n])', r"\1", double))
        elif ansi is not None:
            raw = os.fsencode(ansi).decode("latin-1")
            word.append(os.fsdecode(_ESCAPE.sub(_ansi, raw).encode("latin-1")))
        else:
            word.append(single if single is not None else escaped or plain)
        position = match.end()
    return "".join(word), position


def _ansi(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ANSI.get(code, code)


def next_state(session: Session, before: dict[str, Any], state: State) -> list[str]:
    """Take over what a command left; ``before`` is {"cwd": given or None, "env": given or {}} of that run alone.

    Answers the names of the variables that are too long to be kept.
    """
    cwd, variables, session.functions, session.variables = state
    too_long = [n for n, v in variables.items() if len(os.fsencode(f"{n}={v}")) > LONGEST_VARIABLE]
    for name in too_long:
        del variables[name]
    for name, value in before["env"].items():
        if variables.get(name) == value:
            if name in session.env:
                variables[name] = session.env[name]
            else:
                variables.pop(name, None)
    session.env = variables
    if before["cwd"] is None:
        session.cwd = cwd
    return too_long
