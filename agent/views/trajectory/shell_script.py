"""A run as a shell script that repeats its commands and changes of files, in a folder like the one it had."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from agent.record.store import CallRecord, RunRecord
from agent.record.subruns import subruns_by_step
from agent.views.step_view import result_text
from sandbox.text.invisible import visible

_HEAD = """\
#!/usr/bin/env bash
{about}
state=$(mktemp -d) || exit 1
trap 'rm -rf "$state"' EXIT
# A command as the sandbox ran it: the folder and exported variables of its session carry over, and an exit ends it alone.
keep() {{ pwd > "$state/$session.folder"; export -p | sed "s/^declare -x /export /" > "$state/$session.variables"; }}
step() {{  # session, command
    (
        session=$1
        [ -s "$state/$1.folder" ] && cd "$(cat "$state/$1.folder")" && . "$state/$1.variables"
        [ -n "$1" ] && trap keep EXIT
        eval "$2"
    )
    echo "[exit code $?]" >&2
}}
edit() {{  # file, old text, new text, all or once
    python3 -c 'import sys
path, old, new, how = sys.argv[1:]
with open(path, newline="", encoding="utf-8") as file: text = file.read()
assert old in text, f"{{path}}: the text to be replaced is not there"
with open(path, "w", newline="", encoding="utf-8") as file: file.write(text.replace(old, new, -1 if how == "all" else 1))' "$@"
}}
"""
# These change nothing, and become comments.
_ONLY_READ = frozenset(
    {"read", "list", "search", "logs", "browse", "usage", "processes", "screen", "think", "finish", "wait_for"}
)

_ON_A_PATH = frozenset({"write", "edit", "make_dir", "delete"})


def shell_script(run: RunRecord) -> str:
    """Return the script, for bash; ``edit`` needs python3. Comments say what it cannot repeat, and at the top how much that is."""
    body, missed = [], 0
    for line, done in _steps(run):
        body.append(line)
        missed += not done
    about = [
        f"Run {run.run or '(without an id)'} of {run.agent or 'an agent'}: {run.status or 'not ended'}",
        f"Task: {run.task}",
    ]
    if missed:
        about.append(f"NOT IN HERE: {missed} step{'' if missed == 1 else 's'}, marked below.")
    head = _HEAD.format(about="\n".join(_comment(line) for line in about))
    end = _comment(f"The end: {run.reason} {result_text(run.result)}".strip())
    return "\n".join([head, *body, end, ""]).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _steps(run: RunRecord) -> Iterator[tuple[str, bool]]:
    parts = subruns_by_step(run)
    for step in run.steps:
        begun = parts.get(step.number, ())
        text = [_comment(f"--- step {step.number} {step.thought}".rstrip())]
        complete = True
        for call in step.calls:
            lines = [_comment("what the other agent did:")] if begun and call.tool == "delegate" else _lines(call)
            text += lines or [_comment(f"NOT IN HERE: {_short(call)}")]
            complete = complete and lines is not None
        yield "\n".join([*text, ""]), complete
        for part in begun:
            yield from _steps(part)
    for part in parts.get(None, ()):
        yield from _steps(part)


def _lines(step: CallRecord) -> list[str] | None:
    """Return the lines that do what the call did, None if the script cannot do it."""
    if step.tool is None or step.tool in _ONLY_READ:
        return [_comment(_short(step))]
    if step.tool == "run":
        return _command(step)
    if not step.succeeded:
        return [_comment(f"{_short(step)} failed, and changed nothing")] if _no_effect(step) else None
    return _changed_again(step)


def _changed_again(step: CallRecord) -> list[str] | None:
    """Return the lines that change files as the call did."""
    if step.tool in _ON_A_PATH and not step.argument("path"):
        return None  # of another tool that is called so
    path = _quoted(_dashed(step.argument("path")))
    match step.tool:
        case "write":
            return [f'mkdir -p -- "$(dirname -- {path})"', _written(path, step.argument("content"))]
        case "edit":
            how = "all" if isinstance(step.args, dict) and step.args.get("replace_all") else "once"
            return [f"edit {path} {_quoted(step.argument('old_text'))} {_quoted(step.argument('new_text'))} {how}"]
        case "make_dir":
            return [f"mkdir -p -- {path}"]
        case "delete":
            return [f"rm -rf -- {path}"]
        case "move":
            places = [_quoted(_dashed(step.argument(name))) for name in ("source", "target")]
            return [f"mv -- {' '.join(places)}"] if all(step.argument(n) for n in ("source", "target")) else None
        case "kill":
            return [f'kill "${{{_name(step.argument("id"))}-}}" 2>/dev/null']
    return None


def _no_effect(step: CallRecord) -> bool:
    return step.envelope is not None and step.envelope.get("effects") == "none"


def _command(step: CallRecord) -> list[str] | None:
    args = step.args if isinstance(step.args, dict) else {}
    if step.envelope is None or not (step.succeeded or step.result):
        return [_comment(f"{_short(step)} was not carried out")] if step.envelope is None or _no_effect(step) else None
    argv = args.get("argv")
    text = " ".join(_quoted(str(word)) for word in argv) if isinstance(argv, list) else step.argument("command")
    if step.argument("cwd"):
        text = f"cd {_quoted(step.argument('cwd'))} && {{ {text}\n}}"
    if not step.succeeded:
        text = f"timeout --signal=KILL {_seconds(step):.0f} bash -c {_quoted(text)}"
    if args.get("background"):
        name = _name(str(step.result.get("id")))
        return [f'bash -c {_quoted(text)} > "$state/{name}" 2>&1 & {name}=$!']
    fed = f" <<< {_quoted(step.argument('stdin'))}" if step.argument("stdin") else " < /dev/null"
    session = args.get("session", "default")
    return [f"step {'' if session is None else _name(str(session))!r} {_quoted(text)}{fed}"]


def _seconds(step: CallRecord) -> float:
    """Return how long a command ran that was stopped."""
    taken = step.result.get("duration_ms")
    return max(float(taken) / 1000, 1.0) if isinstance(taken, int | float) else 60.0


def _written(path: str, content: str) -> str:
    if visible(content) != content:
        return f"printf -- {_quoted(_as_format(content))} > {path}"
    if not content.endswith("\n"):
        return f"printf %s {_quoted(content)} > {path}"
    mark = "END"
    while f"\n{mark}\n" in f"\n{content}":
        mark += "_"
    return f"cat > {path} <<'{mark}'\n{content}{mark}"


def _as_format(content: str) -> str:
    """Return a format for printf that writes ``content``, without characters that a reader of the script would not see."""
    text = content.replace("\\", "\\\\").replace("%", "%%")
    return _as_bytes(text, "\\{:03o}")


def _quoted(text: str) -> str:
    """Return ``text`` as a word of the shell, without characters that a reader of the script would not see."""
    if visible(text) == text:
        return shlex.quote(text)
    return "$'" + _as_bytes(text.replace("\\", "\\\\").replace("'", "\\'"), "\\x{:02x}") + "'"


def _as_bytes(text: str, form: str) -> str:
    return "".join(
        char if visible(char) == char else "".join(form.format(byte) for byte in char.encode("utf-8", "replace"))
        for char in text
    )


def _name(ident: str) -> str:
    return "n_" + re.sub(r"\W", "_", ident)[:40]


def _dashed(path: str) -> str:
    """Return the path so that no program takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def _short(step: CallRecord) -> str:
    text = visible(f"{step.tool} {step.args}")
    return text if len(text) <= 300 else f"{text[:300]}…"


def _comment(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in visible(text).split("\n"))
