"""Commands that can change nothing of their bash but its folder, as their syntax alone says.

bash takes 0.3 ms longer to write down its variables and functions than its folder alone. A command that consists of programs
with their arguments, joined by ``;``, ``&``, ``|`` and line ends, redirected or not, has no way to change them. Whatever is not
surely of that kind counts as not plain: an expansion, a bracket, a builtin other than those of PLAIN, an unusual character.
"""

from __future__ import annotations

PLAIN = frozenset(("cd", "echo", "false", "pwd", "true"))
# What ``compgen -bk`` lists, of names that can be written with _NAME_CHARS; a test compares.
_BUILTINS = frozenset(
    (
        ".", "alias", "bg", "bind", "break", "builtin", "caller", "case", "command", "compgen", "complete", "compopt", "continue",
        "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else", "enable", "esac", "eval", "exec", "exit", "export",
        "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history", "if", "in", "jobs", "kill", "let", "local",
        "logout", "mapfile", "popd", "printf", "pushd", "read", "readarray", "readonly", "return", "select", "set", "shift",
        "shopt", "source", "suspend", "test", "then", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias",
        "unset", "until", "wait", "while",
    )
)  # fmt: skip
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-"
_CHARS = _NAME_CHARS + ",:@%+^~*?[]=' \t\n;&|<>"
# Looking at a longer command may take longer than what it saves: up to a second for 128 KiB of quotes, in the reactor.
MOST_CHARS = 2000


def is_plain(command: str) -> bool:
    """Return whether a bash that starts without functions and aliases surely has the same variables after ``command``.

    All but COLUMNS and LINES, if they are exported, which a bash on a terminal may set.
    """
    bare = _without_quotes(command) if len(command) <= MOST_CHARS else None
    if bare is None or bare.strip(_CHARS) or "<<" in bare:
        return False
    joined = bare.replace("&>", ">").replace(">&", ">").replace("<&", "<")
    for separator in "&|\n":
        joined = joined.replace(separator, ";")
    for simple in joined.split(";"):
        name = simple.split(None, 1)[0] if not simple.isspace() and simple else "true"
        if name.strip(_NAME_CHARS) or name in _BUILTINS:
            return False
    return True


def _without_quotes(command: str) -> str | None:
    """Return the command with a ``'`` for each quoted part; None if a quote is not closed, or has an expansion in it."""
    pieces: list[str] = []
    while True:
        starts = [at for at in (command.find("'"), command.find('"')) if at >= 0]
        if not starts:
            return "'".join([*pieces, command])
        start = min(starts)
        quote = command[start]
        end = command.find(quote, start + 1)
        inner = command[start + 1 : end]
        if end < 0 or (quote == '"' and any(char in inner for char in "$`\\")):
            return None
        pieces.append(command[:start])
        command = command[end + 1 :]
