"""A program that searches like ``rg --json``, for sandboxes without ripgrep: ``search_builtin REQUEST``.

Runs in a process of its own, because a regular expression can take forever and only a process can be killed. Searches the working
folder or standard input. Ignore files do not count; .git and binary files are skipped.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

from .tree_walk import DIRECTORY, walk

SNIFFED = 8192
LINE_BYTES = 16 << 20  # the beginning of a longer line that is searched
LINE_CHARS = 2000  # characters of a longer line that are returned around the match


class Search:
    """One search; it ends when ``left``, the number of matches still wanted, is 0. ``emit`` receives the events.

    ``unreadable`` says whether a file or folder was left out because it could not be read.
    """

    def __init__(self, request: dict[str, Any], emit: Callable[..., None]) -> None:
        self._emit = emit
        pattern = request["pattern"]
        flags = re.IGNORECASE if request.get("ignore_case") else 0
        self.pattern = re.compile(re.escape(pattern) if request.get("literal") else pattern, flags)
        self.glob: str | None = request.get("glob")
        self.context = int(request.get("context_lines", 0))
        self.left = int(request.get("max_matches", 100)) + 1
        self.unreadable = False

    def search_folder(self) -> None:
        """Search everything below the working folder that the glob allows."""
        for item in walk(os.open(b".", DIRECTORY), on_skip=self._skip, accept=lambda name: name != b".git"):
            if self.left <= 0:
                return
            if stat.S_ISREG(item.status.st_mode) and self.allows(os.fsdecode(item.path)):
                try:
                    fd = os.open(
                        item.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=item.folder_fd
                    )
                except FileNotFoundError:
                    continue
                except OSError:
                    self._skip(item.path)
                    continue
                with open(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):  # it may have been replaced meanwhile
                        self.search_file(file, b"./" + item.path)

    def _skip(self, _: bytes) -> None:
        self.unreadable = True

    def allows(self, path: str) -> bool:
        """Return whether the glob allows the file ``path``, relative to the folder."""
        if not self.glob:
            return True
        exclude, glob = self.glob.startswith("!"), self.glob.removeprefix("!")
        subject = path if "/" in glob else path.rsplit("/", 1)[-1]
        patterns = _alternatives(glob.lstrip("/"))
        return any(fnmatch.fnmatchcase(subject, pattern) for pattern in patterns) != exclude

    def search_file(self, file: BinaryIO, path: bytes) -> None:
        """Search one file."""
        head = file.read(SNIFFED)
        if b"\0" in head:
            return
        file.seek(0)
        self._emit("begin", path)
        before: deque[tuple[int, str]] = deque(maxlen=self.context)
        after = number = 0
        while self.left > 0 and (line := file.readline(LINE_BYTES)):
            number += 1
            end = line
            while not end.endswith(b"\n") and len(end) == LINE_BYTES:
                end = file.readline(LINE_BYTES)
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if match := self.pattern.search(text):
                for earlier in before:
                    self._emit("context", path, *earlier)
                before.clear()
                self._emit("match", path, number, text, match.start())
                self.left -= 1
                after = self.context
            elif after:
                self._emit("context", path, number, text)
                after -= 1
            else:
                before.append((number, text))


def _alternatives(glob: str) -> list[str]:
    """Return the globs that a glob stands for: {a,b} expanded, and ``**/`` also left out."""
    braces = re.search(r"\{([^{}]*)\}", glob)
    if braces:
        before, after = glob[: braces.start()], glob[braces.end() :]
        return [each for part in braces[1].split(",")[:50] for each in _alternatives(before + part + after)][:500]
    return [glob, glob.replace("**/", "")] if "**/" in glob else [glob]


def print_event(kind: str, path: bytes, number: int = 0, line: str = "", at: int = 0) -> None:
    """Print an event as ripgrep writes it."""
    sys.stdout.write(event(kind, path, number, line, at) + "\n")
    sys.stdout.flush()


def event(kind: str, path: bytes, number: int = 0, line: str = "", at: int = 0) -> str:
    """Return an event as ripgrep writes it; of a long line, the part around the match at index ``at``, and what was "cut"."""
    data: dict[str, Any] = {"path": {"bytes": base64.b64encode(path).decode()}}
    if number:
        start = (
            0 if len(line) <= LINE_CHARS or at < LINE_CHARS // 3 else min(at - LINE_CHARS // 4, len(line) - LINE_CHARS)
        )
        part = line[start : start + LINE_CHARS]
        data |= {
            "line_number": number,
            "lines": {"text": part},
            "submatches": [{"start": len(part[: at - start].encode("utf-8", "replace"))}],
            "cut": [start, len(line) - start - len(part)],
        }
    return json.dumps({"type": kind, "data": data})


def main() -> int:
    """Search as the argument says. Returns ripgrep's exit status: 2, with the reason on stderr, for an invalid pattern; 2 alone
    if something could not be read.
    """
    request = json.loads(sys.argv[1])
    try:
        search = Search(request, print_event)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    if request["folder"]:
        search.search_folder()
    else:
        search.search_file(sys.stdin.buffer, b"-")
    return 2 if search.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
