"""Sessions: a working folder, variables and functions that carry over from one command to the next.

Every command gets a new shell, which starts from the session's state and writes its own state to a memory file when it ends. So
there is no long-lived shell that a timeout, an ``exit`` or a syntax error could take away.

Exported variables are the environment of the next shell. Functions and variables that are not exported exist only inside a shell,
and only bash can list them completely: it prints them when it ends (DUMP), and they come back as arguments of the next shell
(RESTORE), which evaluates them before the command. That forks nothing, and costs nothing in a session that has none of them.
"""

from __future__ import annotations

import os

from .. import users
from ..builtin import deque
from ..loop.context import Place
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from re import Match
    from typing import Any

    from ..users import User

    # folder, exported variables, functions as text for a shell, variables that are not exported
    State = tuple[str, dict[str, str], str, dict[str, str]]

STATE_LIMIT = 1 << 20
MOST_NAMED = 10
# The kernel starts no program with a longer "NAME=value" (MAX_ARG_STRLEN): if one were carried over, it would end the session.
LONGEST_VARIABLE = (128 << 10) - 1
# The kernel takes no longer path (PATH_MAX): if such a folder was kept, no later command of its session would start.
LONGEST_FOLDER = 4095
STATE_FD_OF_BASH = 199
_SHELLS = (("/bin/bash", STATE_FD_OF_BASH), ("/usr/bin/bash", STATE_FD_OF_BASH), ("/bin/sh", 9), ("/usr/bin/sh", 9))
# One argument may have 128 KiB; a character has at most four bytes.
ARGUMENT_CHARS = 30_000

# Patterns, and not compiled: ``re`` takes a guest half a MiB, and most states are parsed without it.
# Matches a command that looks as if it changed the state of its shell.
_CHANGES = (
    r"(?:^|[;&|({\s])(?:(?:cd|pushd|popd|export|declare|source|unset|alias|\.)\s|[A-Za-z_][A-Za-z0-9_]*=\S*\s*(?:;|\n|&|$))"
)

DUMP = 'builtin declare -f; builtin declare -Fx; builtin printf "\\0"; builtin declare -p; builtin printf "\\0"'
DUMP_NOTHING = 'printf "\\0\\0"'
RESTORE = (
    """builtin printf -v __gamebox_carried %s "$@"; set --; { eval "$__gamebox_carried"; } 2>/dev/null; """
    """builtin unset __gamebox_carried; """
)
# Saves the state after the command, or on the way out if the command leaves by itself (exit, set -e). A command that sets an EXIT
# trap of its own keeps it. Nothing here starts a process. All of it is one line: the shell counts the command's lines from 1, and
# after a command with an unclosed quote bash would not understand a further line. What saves is in a variable: bash would print a
# function each time. Unlike a function, ``eval`` runs a trap for DEBUG, so that one is removed first. What is saved begins with
# NUL, which separates it from anything that the command wrote to the descriptor before.
_PRELUDE = (
    """__gamebox_save='[ "${__gamebox_saved-}" ] || { NO_DEBUG{ """
    """BUILTINprintf "\\0%s\\0" "$PWD"; BUILTINexport -p; BUILTINprintf "\\0"; """
    """DUMP; } >&FD; }'; trap '{ set +x; BUILTINeval "$__gamebox_save"; } 2>/dev/null' EXIT; """
    """LOCAL__gamebox_command=$1; shift; RESTOREeval "$__gamebox_command"; """
    """{ __gamebox_status=$?; set +x; BUILTINeval "$__gamebox_save"; __gamebox_saved=1; } 2>/dev/null; exit $__gamebox_status"""
)
# For a plain command (``plain_commands.py``), which sets no traps. bash runs this one for EXIT even if a signal ends it.
_PRELUDE_OF_PLAIN = (
    """trap 'BUILTINprintf "\\0%s\\0" "$PWD" 2>/dev/null >&FD' EXIT; """
    """LOCAL__gamebox_command=$1; shift; RESTOREeval "$__gamebox_command"; exit $?"""
)
# For a command whose state nothing carries over.
_PRELUDE_WITHOUT_STATE = """LOCAL__gamebox_command=$1; shift; RESTOREeval "$__gamebox_command"; exit $?"""
# busybox counts the lines of what it evaluates from 0: the command gets a line more, which is the second argument.
_FIRST_LINE = """__gamebox_command=$1; [ "${LINENO-}" != 0 ] || __gamebox_command=$2$1; shift 2;"""
# bash asks the user database for SHELL, unless it is in the environment, and does not export it.
_UNEXPORT_SHELL = "builtin export -n SHELL; "
# Variables that the shell sets for itself and a session does not keep: exported ones, then the others. IFS and PS4 would affect the
# lines around the user's command.
_SHELL_EXPORTS = {"_", "SHLVL", "PWD", "OLDPWD", "BASHPID", "GAMEBOX_STATE", "SHELLOPTS", "BASHOPTS"}
_SHELL_PREFIXES = ("BASH", "COMP_", "EPOCH", "HIST", "__gamebox")
_SHELL_VARIABLES = frozenset(
    {"DIRSTACK", "EUID", "GROUPS", "HOSTNAME", "HOSTTYPE", "IFS", "LINENO", "MACHTYPE", "OPTERR", "OPTIND", "OPTARG", "OSTYPE"}
    | {"PIPESTATUS", "PPID", "PS4", "SRANDOM", "RANDOM", "SECONDS", "UID", "_", "FUNCNAME", "COLUMNS", "LINES", "SHELLOPTS"}
    | {"OLDPWD", "PWD", "SHLVL", "TERM", "PATH", "SHELL", "COPROC"}
)
_VARIABLE = r"(?m)^declare -(\S+) ([A-Za-z_][A-Za-z0-9_]*)(=?)"
# Functions that do not carry over: they replace a builtin which the lines around a command use.
_NOT_CARRIED = r"(?m)^(?:builtin|declare|eval|exit|export|printf|return|set|shift|trap|unset|\[|:) \(\) *\n"
_NOT_CARRIED_WHOLE = _NOT_CARRIED + r"\{ *\n(?: .*\n)*\}.*\n"
_DECLARATION = r"(?m)^(?:declare -[a-zA-Z]*x[a-zA-Z]*|export) ([A-Za-z_][A-Za-z0-9_]*)(=?)"
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "E": "\x1b", "e": "\x1b"}
_PIECE = r"""(?s)'([^']*)'|"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)'|\\(.)|([^\s'"\\$]+)"""
_ESCAPE = r"(?s)\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)"

# With these, bash may start with functions, aliases or options.
_CUSTOMIZING = ("BASH_ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "POSIX_PEDANTIC")

# What ``_build_text`` has built: a dozen at most.
_texts: dict[tuple[bool, int | None, bool, bool, bool], str] = {}
# What ``parse_exports`` parsed last: most commands leave the exported variables as they were.
_last_exports: list[tuple[str, dict[str, str]]] = [("", {})]


class Session:
    """State and queue of one session.

    ``busy`` is true while a foreground command of it runs, ``holder`` is the id of the last one. ``user`` runs its commands; None
    stands for the sandbox's own user.
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


class SessionTable:
    """Every session, by name and user. ``own`` are those of the sandbox's own user, by name."""

    def __init__(self, place: Place, isolated: bool) -> None:
        self.own: dict[str, Session] = {}
        self._others: dict[tuple[str, int], Session] = {}  # by name and uid
        self._place = place
        self._isolated = isolated

    def find_user(self, text: str | None) -> User | None:
        """Return the user with that name or number; None for the sandbox's own user. Raises Fault."""
        place = self._place
        if text is None or text in (place.user, str(place.uid)):
            return None
        found = users.find_user(text) if self._isolated else None
        if found is not None and found.uid == place.uid:
            return None
        if not place.any_user:
            raise Fault("user_not_allowed", user=text, own=place.user or str(place.uid), isolated=self._isolated)
        if found is None:
            raise Fault("user_not_found", user=text)
        return found

    def make(self, user: User | None) -> Session:
        """Return a new session without a name."""
        environ = self._place.environ
        if user is not None:
            environ = users.build_environment(environ, user)
        return Session(os.fsdecode(self._place.workspace), environ, user)

    def has(self, name: str | None, user: User | None) -> bool:
        """Return whether a session exists."""
        return name in self.own if user is None else (name, user.uid) in self._others

    def get(self, name: str, user: User | None) -> Session:
        """Return a session, which is made if it does not exist. Raises Fault if there are too many."""
        sessions: dict[Any, Session] = self.own if user is None else self._others
        key = name if user is None else (name, user.uid)
        if key not in sessions:
            most = self._place.limits["sessions"]
            if len(self.own) + len(self._others) >= most:
                names = list(self.own)[-MOST_NAMED:]
                raise Fault("too_many_commands", limit=most, what="sessions", names=names)
            sessions[key] = self.make(user)
        return sessions[key]

    def open_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Make a session. Raises Fault if it exists already."""
        name, user = args["session"], self.find_user(args.get("user"))
        if self.has(name, user):
            raise Fault("session_exists", session=name)
        return {"session": name, "cwd": self.get(name, user).cwd}

    def list_sessions(self, args: dict[str, Any]) -> dict[str, Any]:
        """List the sessions of one user."""
        user = self.find_user(args.get("user"))
        if user is None:
            found = list(self.own.items())
        else:
            found = [(name, session) for (name, uid), session in self._others.items() if uid == user.uid]
        return {"sessions": [{"name": name, "cwd": s.cwd, "busy": s.busy} for name, s in found]}

    def end_session(self, args: dict[str, Any]) -> dict[str, Any]:
        """Forget a session. What runs or waits in it goes on, with a state of its own."""
        user = self.find_user(args.get("user"))
        name = args["session"]
        ended = self.own.pop(name, None) if user is None else self._others.pop((name, user.uid), None)
        return {"session": name, "existed": ended is not None}

    def states(self) -> dict[str, Any]:
        """Return the states of the own sessions by name, as data for ``restore``."""
        return {
            name: {"cwd": s.cwd, "env": s.env, "functions": s.functions, "variables": s.variables}
            for name, s in self.own.items()
        }

    def restore(self, states: dict[str, Any]) -> None:
        """Give each own session its state, and forget sessions that have none. One that runs a command is left alone."""
        for name in [n for n, s in self.own.items() if n not in states and not s.busy]:
            del self.own[name]
        for name, state in states.items():
            session = self.own.setdefault(name, Session("", {}))
            if not session.busy:
                session.cwd, session.env = state["cwd"], dict(state["env"])
                session.functions, session.variables = state["functions"], dict(state["variables"])


def find_shell(path: str = "") -> tuple[str, int] | None:
    """Return the path of the shell and the descriptor for its state; None in an image without a shell.

    ``path`` is the image's PATH, whose folders count where no shell is at a usual place.
    """
    others = [(os.path.join(folder, "sh"), 9) for folder in path.split(":") if folder.startswith("/")]
    for program, fd in (*_SHELLS, *others):
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program, fd
    return None


def is_bash(shell: str) -> bool:
    """Return whether a shell is bash."""
    return os.path.basename(shell) == "bash"


def may_start_customized(session: Session, env: dict[str, str]) -> bool:
    """Return whether a bash of the session with the variables ``env`` may start with functions, aliases or options."""
    if session.functions:
        return True
    return any(name in _CUSTOMIZING or name.startswith("BASH_FUNC_") for names in (env, session.variables) for name in names)


def build_shell_argv(
    shell: str,
    fd: int | None,
    command: str,
    carried: tuple[str, ...] | list[str] = (),
    *,
    plain: bool = False,
    unexport_shell: bool = False,
) -> list[str]:
    """Return the argv that runs ``command`` and writes the state to ``fd``, or nowhere if it is None.

    ``carried`` comes from ``build_carried_arguments``. A bash writes only its folder for a ``plain`` command.
    ``unexport_shell`` says that SHELL is in the environment only for bash itself, see ``users.find_login_shell``.
    """
    bash = is_bash(shell)
    form = (bash, fd, bool(carried), plain, unexport_shell)
    text = _texts.get(form) or _texts.setdefault(form, _build_text(*form))
    return [shell, "-c", text, os.path.basename(shell), command, *(carried if bash else ("\n",))]


def _build_text(bash: bool, fd: int | None, carries: bool, plain: bool, unexport_shell: bool) -> str:
    text = _PRELUDE_WITHOUT_STATE if fd is None else _PRELUDE_OF_PLAIN if plain else _PRELUDE
    text = text.replace("FD", str(fd)).replace("BUILTIN", "builtin " if bash else "")
    text = text.replace("DUMP", DUMP if bash else DUMP_NOTHING).replace("NO_DEBUG", "builtin trap - DEBUG; " if bash else "")
    text = text.replace("LOCAL", _UNEXPORT_SHELL if unexport_shell else "")
    if not bash:
        text = text.replace("__gamebox_command=$1; shift;", _FIRST_LINE)
    return text.replace("RESTORE", RESTORE if bash and carries else "")


def build_carried_arguments(functions: str, variables: dict[str, str], without: Collection[str]) -> list[str]:
    """Return the arguments that give a shell these functions and variables, except variables named in ``without``."""
    if not functions and not variables:
        return []
    import shlex

    assignments = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items() if name not in without]
    text = "".join([functions, *assignments])
    return [text[at : at + ARGUMENT_CHARS] for at in range(0, len(text), ARGUMENT_CHARS)]


def may_change_state(command: str) -> bool:
    """Return whether a command looks as if it changed the folder, variables or functions of its shell."""
    import re

    return re.search(_CHANGES, command) is not None


def update_session(session: Session, env: dict[str, str], state: State) -> list[str]:
    """Take over the state that a command left, but for its folder. ``env`` was set for that run alone and does not carry over.

    Returns the names of the variables that are too long to carry over.
    """
    _, variables, session.functions, unexported = state
    hidden = {n: v for n, v in session.variables.items() if n in env and variables.get(n) == env[n]}
    session.variables = {**unexported, **hidden}
    # Encoded only if it may be too long: a character has at most four bytes.
    long = {n: v for n, v in variables.items() if 4 * (len(n) + len(v)) > LONGEST_VARIABLE - 4}
    too_long = [n for n, v in long.items() if len(os.fsencode(f"{n}={v}")) > LONGEST_VARIABLE]
    for name in too_long:
        del variables[name]
    for name, value in env.items():
        if variables.get(name) == value:
            if name in session.env:
                variables[name] = session.env[name]
            else:
                variables.pop(name, None)
    if variables != session.env:  # else it stays the one that was packed last
        session.env = variables
    return too_long


def parse_state(data: bytes) -> State | None:
    """Parse what the shell left; None if it is not complete, because the command overwrote it."""
    parts = data[:STATE_LIMIT].split(b"\0")
    if len(parts) < 5 or not parts[-5].startswith(b"/"):
        return None
    cwd, exports, functions, variables = map(os.fsdecode, parts[-5:-1])
    env = parse_exports(exports)
    if not env:
        return None
    return cwd, env, parse_functions(functions), _parse_variables(variables)


def parse_folder(data: bytes) -> str | None:
    """Parse what the shell left of a plain command; None if it is not complete."""
    parts = data[:STATE_LIMIT].split(b"\0")
    return os.fsdecode(parts[-2]) if len(parts) > 1 and parts[-2].startswith(b"/") else None


def parse_exports(text: str) -> dict[str, str]:
    """Parse the output of ``export -p`` of bash (``declare -x A="b"``) or a POSIX shell (``export A='b'``)."""
    known, kept = _last_exports[0]
    if text != known:
        found = _parse_plain_exports(text)
        if found is None:
            import re

            found, position, declaration = {}, 0, re.compile(_DECLARATION)
            while match := declaration.search(text, position):
                name, position = match.group(1), match.end()
                if match.group(2):
                    found[name], position = _unquote(text, position)
        kept = {n: v for n, v in found.items() if n not in _SHELL_EXPORTS and not n.startswith("__gamebox")}
        _last_exports[0] = (text, kept)
    return dict(kept)


def _parse_plain_exports(text: str) -> dict[str, str] | None:
    """Parse what bash printed if it quoted nothing inside of a value, which is the usual case; None for anything else."""
    found: dict[str, str] = {}
    for line in text.split("\n")[:-1]:
        name, assigned, value = line.removeprefix("declare -x ").partition('="')
        if not (line.startswith("declare -x ") and name.isascii() and name.isidentifier()):
            return None
        if assigned:
            if "\\" in value or value.find('"') != len(value) - 1:
                return None
            found[name] = value[:-1]
    return found if text.endswith("\n") else None


def parse_functions(text: str) -> str:
    """Return the functions in the output of ``declare -f`` that carry over, as text for a shell.

    Returns "" if one that may not carry over cannot be told from the rest, because it contains a here-document.
    """
    if not text:
        return ""
    import re

    carried = re.sub(_NOT_CARRIED_WHOLE, "", text)
    return "" if re.search(_NOT_CARRIED, carried) else carried


def _parse_variables(text: str) -> dict[str, str]:
    """Parse the variables in the output of ``declare -p`` that are not exported; arrays and the like are left out."""
    found: dict[str, str] = {}
    begins = [line[11:].partition("=") for line in text.split("\n") if line.startswith("declare -- ")]
    if all(not equals or _is_of_shell(name) for name, equals, _ in begins):  # the usual case
        return found
    import re

    position, variable = 0, re.compile(_VARIABLE)
    while match := variable.search(text, position):
        flags, name, has_value = match.groups()
        position = match.end()
        if not has_value or flags != "-" or _is_of_shell(name):
            continue
        found[name], position = _unquote(text, position)
    return found


def _is_of_shell(name: str) -> bool:
    return name in _SHELL_VARIABLES or name.startswith(_SHELL_PREFIXES)


def _unquote(text: str, position: int) -> tuple[str, int]:
    """Return the shell word at ``position``, without its quotes, and where it ends."""
    import re

    word: list[str] = []
    piece = re.compile(_PIECE)
    while match := piece.match(text, position):
        single, double, ansi, escaped, plain = match.groups()
        if double is not None:
            word.append(re.sub(r'\\([$`"\\\n])', r"\1", double))
        elif ansi is not None:
            raw = os.fsencode(ansi).decode("latin-1")
            word.append(os.fsdecode(re.sub(_ESCAPE, _ansi, raw).encode("latin-1")))
        else:
            word.append(single if single is not None else escaped or plain)
        position = match.end()
    return "".join(word), position


def _ansi(match: Match[str]) -> str:
    code = match.group(1)
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ANSI.get(code, code)
