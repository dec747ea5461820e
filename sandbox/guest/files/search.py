"""Searching the contents of files, with ripgrep if the sandbox has it, else with a program of our own that answers alike."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator

from ..loop.context import Call, HelperResult
from ..protocol.faults import Fault
from .roots import Roots, readable_roots_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 30.0
OUTPUT_BYTES = 8 << 20
LINE_CHARS = 1000
BEFORE_CHARS = 300  # characters of a longer line that are returned before the match
# A second search: for skipped files, for the number of matches, for a line that was too long for the first.
AGAIN_SECONDS, AGAIN_BYTES = 3.0, 1 << 20
AROUND_CHARS = 200  # characters of such a line on either side of the match
MOST_SKIPPED, SNIFFED_FILES, SNIFFED_BYTES = 5, 50, 8192
RESULT_CHARS = 1 << 20  # text of all matches with their context


def search(call: Call) -> dict[str, Any]:
    """Handle ``search``. Raises Fault, ``invalid_pattern`` with the engine's message, and ``timeout`` with the matches so far."""
    args = call.args
    path: str = args.get("path", ".")
    check_texts(args)
    roots = readable_roots_of(call.place)
    fd, is_folder = _open(roots, path)
    deadline = time.monotonic() + SECONDS  # for all searches: the host waits only a little longer
    found = MatchParser(roots, path, is_folder, args.get("max_matches", 100), args.get("context_lines", 0))
    more: dict[str, Any] = {}
    try:
        engine = "ripgrep"
        try:
            done = _run(call, ripgrep_argv(args, is_folder), fd, is_folder)
        except Fault as fault:
            if fault.code not in ("program_not_found", "program_not_executable"):
                raise
            engine = "builtin"
            done = _run(call, _builtin_argv(call, args, is_folder), fd, is_folder)
        result = {**found.read(done.stdout), "engine": engine}
        if engine == "ripgrep" and found.too_long is not None:
            found.add_long_lines(_search_long_lines(call, roots, args, found.too_long, deadline))
            result |= {"matches": found.matches, "files_with_matches": len(found.files)}
        result["truncated"] = result["truncated"] or done.truncated
        if engine == "ripgrep" and not done.timed_out and done.exit_code in (0, 1, 2):
            if result["truncated"]:
                more = _count_matches(call, args, fd, is_folder, deadline)
                more["truncated"] = more.get("total_matches") != len(result["matches"])
            elif not result["matches"] and is_folder:
                more = _search_skipped_files(call, roots, args, fd, deadline)
    finally:
        os.close(fd)
    result |= {**more, "unreadable": done.exit_code == 2 and not done.stderr.strip()}
    if done.timed_out:
        raise Fault("timeout", result=result, seconds=SECONDS)
    _raise_for(done, result, args)
    return result


def check_texts(args: dict[str, Any]) -> None:
    """Raise Fault ``invalid_pattern`` if the pattern or the glob cannot be an argument of a program."""
    for name in ("pattern", "glob"):
        _check_text(name, args.get(name))


def _check_text(name: str, text: str | None) -> None:
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
        return roots.open_regular(path)[0], False
    except Fault as fault:
        if fault.code != "is_a_directory":
            raise
    return roots.open(path, os.O_RDONLY | os.O_DIRECTORY), True


def _run(
    call: Call, argv: list[str], fd: int, is_folder: bool, seconds: float | None = None, size: int = OUTPUT_BYTES
) -> HelperResult:
    # A folder becomes the working folder and a file the standard input, so that neither is looked up by name again.
    # PYTHONSAFEPATH: nothing in that folder is imported.
    env = {**call.place.environ, "PYTHONSAFEPATH": "1"}
    return call.run_helper(
        argv,
        timeout_seconds=SECONDS if seconds is None else seconds,
        max_output_bytes=size,
        cwd_fd=fd if is_folder else None,
        stdin=b"" if is_folder else fd,
        env=env,
    )


def ripgrep_argv(args: dict[str, Any], is_folder: bool) -> list[str]:
    """Return the command line of ripgrep. Hidden files are searched, .git is not; ignore files always count."""
    argv = ["rg", "--json", "--no-config", "--no-messages", "--no-require-git", "--hidden", "--sort=path"]
    argv.append(f"--max-count={args.get('max_matches', 100) + 1}")
    if args.get("context_lines"):
        argv.append(f"--context={args['context_lines']}")
    if not is_folder:
        argv.append("--text")  # a file that is named is searched even if it is binary
    return [*argv, *_pattern_argv(args, is_folder)]


def _pattern_argv(args: dict[str, Any], is_folder: bool) -> list[str]:
    """Return the arguments of ripgrep for the pattern and the place."""
    argv = []
    if args.get("literal"):
        argv.append("--fixed-strings")
    if args.get("ignore_case"):
        argv.append("--ignore-case")
    if args.get("glob") and is_folder:
        argv.append(f"--glob={args['glob']}")
    return [*argv, "--glob=!.git", f"--regexp={args['pattern']}", "--", "./" if is_folder else "-"]


def _seconds_left(deadline: float) -> float:
    """Return how long a second search may take."""
    return max(0.01, min(AGAIN_SECONDS, deadline - time.monotonic()))


def _search_skipped_files(call: Call, roots: Roots, args: dict[str, Any], fd: int, deadline: float) -> dict[str, Any]:
    """Return files with a match that were not searched: .gitignore names them ("ignored"), or they are "binary"."""
    argv = ["rg", "--files-with-matches", "--null", "--no-config", "--no-messages", "--no-ignore", "--hidden", "--text"]
    done = _run(call, [*argv, *_pattern_argv(args, True)], fd, True, _seconds_left(deadline), AGAIN_BYTES)
    names = sorted(name for name in done.stdout.split(b"\0")[:-1] if b"\n" not in name)
    found: dict[str, list[str]] = {"ignored": [], "binary": []}
    for name in names[:SNIFFED_FILES]:
        path = os.path.join(args.get("path", "."), os.fsdecode(name))
        kind = found["binary" if _is_binary(roots, path) else "ignored"]
        if len(kind) < MOST_SKIPPED:
            kind.append(roots.display(path.encode("utf-8", "surrogateescape")))
    return {**found, "left_out_files": len(names), "left_out_unknown": done.timed_out}


def _is_binary(roots: Roots, path: str) -> bool:
    try:
        fd, _ = roots.open_regular(path)
    except Fault:  # gone meanwhile
        return False
    try:
        return b"\0" in os.read(fd, SNIFFED_BYTES)
    except OSError:
        return False
    finally:
        os.close(fd)


def _count_matches(call: Call, args: dict[str, Any], fd: int, is_folder: bool, deadline: float) -> dict[str, Any]:
    """Return how many lines match in total, or {} if they cannot be counted in time."""
    argv = ["rg", "--count", "--no-filename", "--no-config", "--no-messages", "--no-require-git", "--hidden"]
    if not is_folder:
        os.lseek(fd, 0, os.SEEK_SET)
        argv.append("--text")
    done = _run(call, [*argv, *_pattern_argv(args, is_folder)], fd, is_folder, _seconds_left(deadline), AGAIN_BYTES)
    counts = [int(word) for word in done.stdout.split() if word.isdigit() and len(word) < 16]
    return {} if done.timed_out or done.truncated or not counts else {"total_matches": sum(counts)}


def _search_long_lines(
    call: Call, roots: Roots, args: dict[str, Any], path: str, deadline: float
) -> list[tuple[int, str]]:
    """Return number and matched part of the matching lines in a file whose lines are too long to be returned completely."""
    try:
        fd, _ = roots.open_regular(path)
    except Fault:
        return []
    try:
        argv = ["rg", "--only-matching", "--line-number", "--no-filename", "--color=never", "--no-config", "--text"]
        argv.append(f"--max-count={args.get('max_matches', 100)}")
        plain = re.escape(args["pattern"]).replace("\\ ", " ") if args.get("literal") else args["pattern"]
        around = {**args, "pattern": f".{{0,{AROUND_CHARS}}}(?:{plain}).{{0,{AROUND_CHARS}}}", "literal": False}
        done = _run(call, [*argv, *_pattern_argv(around, False)], fd, False, _seconds_left(deadline), AGAIN_BYTES)
    finally:
        os.close(fd)
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        number, _, text = line.partition(b":")
        if number.isdigit() and len(number) < 16:
            found.setdefault(int(number), text.decode("utf-8", "replace")[:LINE_CHARS])
    return list(found.items())


def _builtin_argv(call: Call, args: dict[str, Any], is_folder: bool) -> list[str]:
    names = ("pattern", "glob", "literal", "ignore_case", "context_lines", "max_matches")
    request = {name: args[name] for name in names if name in args} | {"folder": is_folder}
    return [*call.place.interpreter, "-m", f"{__package__}.search_builtin", json.dumps(request)]


def _raise_for(done: HelperResult, result: dict[str, Any], args: dict[str, Any]) -> None:
    """Raise the Fault for a failed search. Exit codes: 0 found, 1 not found, 2 an error, which may concern one file only."""
    if done.exit_code in (0, 1) or done.truncated or result["matches"]:
        return
    message = done.stderr.decode("utf-8", "replace").strip()
    problem = message.rpartition("error: ")[2].partition("\n\n")[0][:LINE_CHARS]
    if done.exit_code == 2:
        if not problem:  # unreadable files are not errors
            return
        about = args.get("glob") if "glob" in message and args.get("glob") else args["pattern"]
        raise Fault("invalid_pattern", pattern=about, problem=problem)
    raise Fault(
        "io_error",
        path=args.get("path", "."),
        errno="unknown",
        problem=problem or "the search program was ended by a signal",
    )


class MatchParser:
    """Parses the lines of ``rg --json``, or of the program that imitates it; the sandbox may have forged them."""

    def __init__(self, roots: Roots, path: str, is_folder: bool, most: int, context: int) -> None:
        self._roots, self._path, self._is_folder = roots, path, is_folder
        self._most, self._context = most, context
        self._before: deque[tuple[int, str]] = deque(maxlen=max(context, 0))
        self._open: list[dict[str, Any]] = []  # matches whose context is not complete yet
        self.matches: list[dict[str, Any]] = []
        self.files: set[str] = set()
        self._chars = 0
        self._full = False
        self.too_long: str | None = None  # the first file with a match in a line that was truncated

    def read(self, output: bytes) -> dict[str, Any]:
        """Parse the output. Returns the result without its ``engine``."""
        for kind, data in self._events(output):
            if self._full and not self._open:
                break
            if kind == "begin":
                self._before.clear()
                self._open.clear()
            elif kind in ("match", "context"):
                self._add_line(kind, data)
        return {"matches": self.matches, "files_with_matches": len(self.files), "truncated": self._full}

    def _add_line(self, kind: str, data: dict[str, Any]) -> None:
        number, text = data.get("line_number"), _text(data.get("lines"))
        if not isinstance(number, int) or not 0 < number < 1 << 53 or text is None:
            return
        text = shortened(text.rstrip("\r\n"), data)
        self._open = [
            m for m in self._open if len(m["after"]) < self._context and number == m["line"] + len(m["after"]) + 1
        ]
        for match in self._open:
            match["after"].append(text)
            self._chars += len(text)
        if kind == "match":
            self._add_match(number, text, data)
        if self._context:
            self._before.append((number, text))

    def _add_match(self, number: int, text: str, data: dict[str, Any]) -> None:
        if len(self.matches) >= self._most or self._chars > RESULT_CHARS:
            self._full = True
            return
        name = _text(data.get("path"), "surrogateescape")
        path = os.path.join(self._path, name) if self._is_folder and name else self._path
        displayed = self._roots.display(path.encode("utf-8", "surrogateescape"))
        before = [line for n, line in self._before if n >= number - self._context]
        match = {"path": displayed, "line": number, "text": text, "before": before, "after": []}
        self._chars += len(text) + sum(map(len, before))
        self.files.add(displayed)
        self.matches.append(match)
        if self._context:
            self._open.append(match)

    def _events(self, output: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in output.split(b"\n"):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # truncated, or not JSON
                begun = _BEGUN.match(line)
                if begun and self.too_long is None:
                    self.too_long = os.path.join(self._path, os.fsdecode(begun[1])) if self._is_folder else self._path
                continue
            if isinstance(event, dict) and isinstance(event.get("data"), dict):
                yield str(event.get("type")), event["data"]

    def add_long_lines(self, parts: list[tuple[int, str]]) -> None:
        """Add matches of the file ``too_long`` for which only the matched part is known."""
        path = self._roots.display((self.too_long or "").encode("utf-8", "surrogateescape"))
        known = {(match["path"], match["line"]) for match in self.matches}
        for number, text in parts:
            if (path, number) not in known and len(self.matches) < self._most:
                text = f"[a part of a long line] {text}"
                self.matches.append({"path": path, "line": number, "text": text, "before": [], "after": []})
                self.files.add(path)


# The beginning of a truncated event: a match in a file whose name has no escapes.
_BEGUN = re.compile(rb'\{"type":"match","data":\{"path":\{"text":"([^"\\]+)"\}')


def shortened(text: str, data: dict[str, Any]) -> str:
    """Return at most LINE_CHARS characters of a line around its first match, with notes on how much was cut on either side."""
    before, after = data.get("cut") or (0, 0)
    if len(text) > LINE_CHARS:
        at = _match_start(text, data)
        start = 0 if at <= LINE_CHARS - BEFORE_CHARS else min(at - BEFORE_CHARS, len(text) - LINE_CHARS)
        before, after = before + start, after + len(text) - start - LINE_CHARS
        text = text[start : start + LINE_CHARS]
    head = f"[{before} characters cut]" if before else ""
    return head + text + (f"[{after} characters cut]" if after else "")


def _match_start(text: str, data: dict[str, Any]) -> int:
    """Return the index of the first match in a line, which ripgrep reports in bytes; 0 if it reports none."""
    found = data.get("submatches")
    first = found[0] if isinstance(found, list) and found else None
    start = first.get("start") if isinstance(first, dict) else None
    if type(start) is not int or start <= 0:
        return 0
    if start >= len(text) * 4:
        return 0
    if text.isascii():
        return min(start, len(text))
    return len(text.encode("utf-8", "replace")[:start].decode("utf-8", "ignore"))


def _text(field: Any, errors: str = "replace") -> str | None:
    """Return the text of a field: ripgrep writes valid Unicode as text, anything else as bytes in base64."""
    if not isinstance(field, dict):
        return None
    if isinstance(field.get("text"), str):
        return str(field["text"].encode("utf-8", "replace").decode())
    try:
        return base64.b64decode(field["bytes"], validate=True).decode("utf-8", errors)
    except (KeyError, TypeError, ValueError):
        return None
