"""What of a session only its shell can hold: functions and variables that are not exported. Bash alone can list them whole.

The shell prints them when it ends (DUMP); they come back as arguments of the next shell (RESTORE), which evaluates them before the
command. Nothing is forked, and a session that has none of them pays nothing at the start of a command.
"""

from __future__ import annotations

import re
import shlex

DUMP = "builtin declare -f; builtin declare -Fx; builtin printf '\\0'; builtin declare -p; builtin printf '\\0'"
DUMP_NOTHING = "printf '\\0\\0'"
RESTORE = (
    """builtin printf -v __gamebox_carried %s "$@"; set --; { eval "$__gamebox_carried"; } 2>/dev/null; """
    """builtin unset __gamebox_carried; """
)
# One argument may have 128 KiB; a character has four bytes at most.
PIECE = 30_000
_VARIABLE = re.compile(r"^declare -(\S+) ([A-Za-z_][A-Za-z0-9_]*)(=?)", re.MULTILINE)
# Bash sets these itself; IFS and PS4 would reach into the commands around the user's own.
_OWN = (
    "(?:BASH|COMP_|EPOCH|HIST|__gamebox)[A-Za-z0-9_]*|DIRSTACK|EUID|GROUPS|HOSTNAME|HOSTTYPE|IFS|LINENO|MACHTYPE|OPT(?:ERR|IND|ARG)|OSTYPE|"
    "PIPESTATUS|PPID|PS4|S?RANDOM|SECONDS|UID|_|FUNCNAME|COLUMNS|LINES|SHELLOPTS|OLDPWD|PWD|SHLVL|TERM|PATH|SHELL|COPROC"
)
_SHELLS_OWN = re.compile(_OWN)
# A quick look: most often there is none at all.
_ANY = re.compile(rf"\ndeclare -- (?!(?:{_OWN})=)[A-Za-z_][A-Za-z0-9_]*=")
# Functions that stay behind: ours, and those that take the place of what the lines around a command are made of.
_NOT_CARRIED = r"^(?:__gamebox_save|builtin|declare|eval|exit|export|printf|return|set|shift|trap|unset|\[|:) \(\) *\n"
_BEGINS = re.compile(_NOT_CARRIED, re.MULTILINE)
_WHOLE = re.compile(_NOT_CARRIED + r"\{ *\n(?: .*\n)*\}.*\n", re.MULTILINE)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def functions_of(text: str) -> str:
    """The functions in the output of ``declare -f`` that carry over, as text for a shell.

    None at all where one that may not carry over cannot be told from the rest (a here-document in it).
    """
    carried = _WHOLE.sub("", text)
    return "" if _BEGINS.search(carried) else carried


def variables_of(text: str, unquote: Callable[[str, int], tuple[str, int]]) -> dict[str, str]:
    """The variables in the output of ``declare -p`` that are not exported; arrays and the like are not among them."""
    found: dict[str, str] = {}
    if not _ANY.search("\n" + text):
        return found
    position = 0
    while match := _VARIABLE.search(text, position):
        flags, name, has_value = match.groups()
        position = match.end()
        if not has_value or flags != "-" or _SHELLS_OWN.fullmatch(name):
            continue
        found[name], position = unquote(text, position)
    return found


def restoring(functions: str, variables: dict[str, str], without: Collection[str]) -> list[str]:
    """The arguments that give a shell these functions and variables, but those named ``without``; [] for none."""
    assignments = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items() if name not in without]
    text = "".join([functions, *assignments])
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
