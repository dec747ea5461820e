"""Searching file contents: ripgrep where the sandbox has it, else a plain search of our own with the same result."""

from __future__ import annotations

import base64
import json
import os
from collections import deque
from collections.abc import Iterator

from .beneath import Roots, roots_of
from .context import Call, Finished
from .faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 30.0
OUTPUT_BYTES = 8 << 20
LINE_CHARS = 1000
RESULT_CHARS = 1 << 20  # text of all matches with their context


def search(call: Call) -> dict[str, Any]:
    """The handler of ``search``.

    Raises Fault ``invalid_pattern`` with the engine's words, and ``timeout`` with what was found so far.
    """
    args = call.args
    path: str = args.get("path", ".")
    check_texts(args)
    roots = roots_of(call.place)
    fd, is_folder = _open(roots, path)
    try:
        engine = "ripgrep"
        try:
            done = _run(call, ripgrep_argv(args, is_folder), fd, is_folder)
        except Fault as fault:
            if fault.code != "program_not_found":
                raise
            engine = "builtin"
            done = _run(call, _builtin_argv(call, args, is_folder), fd, is_folder)
    finally:
        os.close(fd)
    found = Found(roots, path, is_folder, args.get("max_matches", 100), args.get("context_lines", 0))
    result = {**found.read(done.stdout), "engine": engine}
    result["truncated"] = result["truncated"] or done.truncated
    if done.timed_out:
        raise Fault("timeout", result=result, seconds=SECONDS)
    _raise_for(done, result, args)
    return result


def check_texts(args: dict[str, Any]) -> None:
    """Raises Fault ``invalid_pattern`` for a pattern or a glob that no program can be given."""
    for name in ("pattern", "glob"):
        _require_plain(name, args.get(name))


def _require_plain(name: str, text: str | None) -> None:
    if text is None:
        return
    if "\0" in text:
        raise Fault(
            "invalid_pattern", pattern=text.replace("\0", "\\0"), problem=f"the {name} contains a NUL character"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Fault("invalid_pattern", pattern=ascii(text), problem=f"the {name} is not valid Unicode") from None


def _open(roots: Roots, path: str) -> tuple[int, bool]:
    try:
        return roots.regular(path)[0], False
    except Fault as fault:
        if fault.code != "is_a_directory":
            raise
    return roots.open(path, os.O_RDONLY | os.O_DIRECTORY), True


def _run(call: Call, argv: list[str], fd: int, is_folder: bool) -> Finished:
    # a folder is the working folder and a file the standard input, so that neither is looked up by name again;
    # with PYTHONSAFEPATH nothing in that folder is imported
    env = {**call.place.environ, "PYTHONSAFEPATH": "1"}
    return call.run_helper(
        argv,
        timeout_seconds=SECONDS,
        max_output_bytes=OUTPUT_BYTES,
        cwd_fd=fd if is_folder else None,
        stdin=b"" if is_folder else fd,
        env=env,
    )


def ripgrep_argv(args: dict[str, Any], is_folder: bool) -> list[str]:
    """The command line of ripgrep. Hidden files are searched, .git is not; ignore files always count."""
    argv = ["rg", "--json", "--no-config", "--no-messages", "--no-require-git", "--hidden", "--sort=path"]
    argv.append(f"--max-count={args.get('max_matches', 100) + 1}")
    if args.get("literal"):
        argv.append("--fixed-strings")
    if args.get("ignore_case"):
        argv.append("--ignore-case")
    if args.get("context_lines"):
        argv.append(f"--context={args['context_lines']}")
    if args.get("glob") and is_folder:
        argv.append(f"--glob={args['glob']}")
    argv += ["--glob=!.git", f"--regexp={args['pattern']}", "--", "./" if is_folder else "-"]
    return argv


def _builtin_argv(call: Call, args: dict[str, Any], is_folder: bool) -> list[str]:
    names = ("pattern", "glob", "literal", "ignore_case", "context_lines", "max_matches")
    request = {name: args[name] for name in names if name in args} | {"folder": is_folder}
    return [*call.place.interpreter, "-m", f"{__package__}.search_builtin", json.dumps(request)]


def _raise_for(done: Finished, result: dict[str, Any], args: dict[str, Any]) -> None:
    """The engine ends with 0 (found), 1 (not found), 2 (something was wrong, maybe with one file only)."""
    if done.exit_code in (0, 1) or done.truncated or result["matches"]:
        return
    said = done.stderr.decode("utf-8", "replace").strip()
    problem = said.rpartition("error: ")[2].partition("\n\n")[0][:LINE_CHARS]
    if done.exit_code == 2:
        if not problem:  # files that could not be read are not spoken of
            return
        about = args.get("glob") if "glob" in said and args.get("glob") else args["pattern"]
        raise Fault("invalid_pattern", pattern=about, problem=problem)
    raise Fault(
        "io_error",
        path=args.get("path", "."),
        errno="unknown",
        problem=problem or "the search program was ended by a signal",
    )


class Found:
    """Reads the lines of ``rg --json`` (or of what imitates them), which the sandbox may have forged."""

    def __init__(self, roots: Roots, path: str, is_folder: bool, most: int, context: int) -> None:
        self._roots, self._path, self._is_folder = roots, path, is_folder
        self._most, self._context = most, context
        self._before: deque[tuple[int, str]] = deque(maxlen=max(context, 0))
        self._open: list[dict[str, Any]] = []  # matches that still miss lines after them
        self.matches: list[dict[str, Any]] = []
        self.files: set[str] = set()
        self._chars = 0
        self._full = False

    def read(self, output: bytes) -> dict[str, Any]:
        """The result without its ``engine``."""
        for kind, data in _events(output):
            if self._full and not self._open:
                break
            if kind == "begin":
                self._before.clear()
                self._open.clear()
            elif kind in ("match", "context"):
                self._line(kind, data)
        return {"matches": self.matches, "files_with_matches": len(self.files), "truncated": self._full}

    def _line(self, kind: str, data: dict[str, Any]) -> None:
        number, text = data.get("line_number"), _text(data.get("lines"))
        if not isinstance(number, int) or not 0 < number < 1 << 53 or text is None:
            return
        text = text.rstrip("\r\n")[:LINE_CHARS]
        self._open = [
            m for m in self._open if len(m["after"]) < self._context and number == m["line"] + len(m["after"]) + 1
        ]
        for match in self._open:
            match["after"].append(text)
            self._chars += len(text)
        if kind == "match":
            self._match(number, text, data)
        if self._context:
            self._before.append((number, text))

    def _match(self, number: int, text: str, data: dict[str, Any]) -> None:
        if len(self.matches) >= self._most or self._chars > RESULT_CHARS:
            self._full = True
            return
        name = _text(data.get("path"), "surrogateescape")
        path = os.path.join(self._path, name) if self._is_folder and name else self._path
        shown = self._roots.display(path.encode("utf-8", "surrogateescape"))
        before = [line for n, line in self._before if n >= number - self._context]
        match = {"path": shown, "line": number, "text": text, "before": before, "after": []}
        self._chars += len(text) + sum(map(len, before))
        self.files.add(shown)
        self.matches.append(match)
        if self._context:
            self._open.append(match)


def _events(output: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in output.split(b"\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # cut, or no JSON
            continue
        if isinstance(event, dict) and isinstance(event.get("data"), dict):
            yield str(event.get("type")), event["data"]


def _text(field: Any, errors: str = "replace") -> str | None:
    """The text of a field: valid Unicode comes as text, anything else as bytes in base64."""
    if not isinstance(field, dict):
        return None
    if isinstance(field.get("text"), str):
        return str(field["text"].encode("utf-8", "replace").decode())
    try:
        return base64.b64decode(field["bytes"], validate=True).decode("utf-8", errors)
    except (KeyError, TypeError, ValueError):
        return None
