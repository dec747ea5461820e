"""A program that searches as ``rg --json`` does, for sandboxes without ripgrep: ``search_builtin REQUEST``.

Runs in a process of its own, because a regular expression can take for ever and only a process can be killed. Searches
the working folder, or standard input. Ignore files are not read; .git and binary files are passed over.
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

from .walking import DIRECTORY, walk

SNIFFED = 8192
LINE_BYTES = 16 << 20  # of a longer line, only so much is searched
LINE_CHARS = 2000  # of a line that is longer, so many around its match are shown


class Search:
    """One search; finished when ``left``, the matches still wanted of all files, is 0."""

    def __init__(self, request: dict[str, Any], say: Callable[..., None]) -> None:
        self._say = say
        pattern = request["pattern"]
        flags = re.IGNORECASE if request.get("ignore_case") else 0
        self.pattern = re.compile(re.escape(pattern) if request.get("literal") else pattern, flags)
        self.glob: str | None = request.get("glob")
        self.context = int(request.get("context_lines", 0))
        self.left = int(request.get("max_matches", 100)) + 1

    def folder(self) -> None:
        """Search everything below the working folder that the glob allows."""
        for item in walk(os.open(b".", DIRECTORY), wanted=lambda name: name != b".git"):
            if self.left <= 0:
                return
            if stat.S_ISREG(item.status.st_mode) and self.wanted(os.fsdecode(item.path)):
                try:
                    fd = os.open(
                        item.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=item.folder_fd
                    )
                except OSError:  # not ours to read, or gone
                    continue
                with open(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):  # exchanged meanwhile, else
                        self.file(file, b"./" + item.path)

    def wanted(self, path: str) -> bool:
        """Whether the glob allows the file ``path``, relative to the folder."""
        if not self.glob:
            return True
        exclude, glob = self.glob.startswith("!"), self.glob.removeprefix("!")
        subject = path if "/" in glob else path.rsplit("/", 1)[-1]
        patterns = _alternatives(glob.lstrip("/"))
        return any(fnmatch.fnmatchcase(subject, one) for one in patterns) != exclude

    def file(self, file: BinaryIO, path: bytes) -> None:
        """Search one file."""
        head = file.read(SNIFFED)
        if b"\0" in head:
            return
        file.seek(0)
        self._say("begin", path)
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
                    self._say("context", path, *earlier)
                before.clear()
                self._say("match", path, number, text, match.start())
                self.left -= 1
                after = self.context
            elif after:
                self._say("context", path, number, text)
                after -= 1
            else:
                before.append((number, text))


def _alternatives(glob: str) -> list[str]:
    """The glob with {a,b} written out, and ``**/`` also standing for nothing."""
    braces = re.search(r"\{([^{}]*)\}", glob)
    if braces:
        before, after = glob[: braces.start()], glob[braces.end() :]
        return [one for part in braces[1].split(",")[:50] for one in _alternatives(before + part + after)][:500]
    return [glob, glob.replace("**/", "")] if "**/" in glob else [glob]


def say(kind: str, path: bytes, number: int = 0, line: str = "", at: int = 0) -> None:
    """One event as ripgrep writes it, on standard output."""
    sys.stdout.write(event(kind, path, number, line, at) + "\n")
    sys.stdout.flush()


def event(kind: str, path: bytes, number: int = 0, line: str = "", at: int = 0) -> str:
    """One event as ripgrep writes it; of a long line the part around the match at the index ``at``, and what was "cut" of it."""
    data: dict[str, Any] = {"path": {"bytes": base64.b64encode(path).decode()}}
    if number:
        start = 0 if len(line) <= LINE_CHARS or at < LINE_CHARS // 3 else min(at - LINE_CHARS // 4, len(line) - LINE_CHARS)
        shown = line[start : start + LINE_CHARS]
        data |= {
            "line_number": number,
            "lines": {"text": shown},
            "submatches": [{"start": len(shown[: at - start].encode("utf-8", "replace"))}],
            "cut": [start, len(line) - start - len(shown)],
        }
    return json.dumps({"type": kind, "data": data})


def main() -> int:
    """Exit status as ripgrep's: 2 with the reason on standard error for a pattern that is none."""
    request = json.loads(sys.argv[1])
    try:
        search = Search(request, say)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    if request["folder"]:
        search.folder()
    else:
        search.file(sys.stdin.buffer, b"-")
    return 0


if __name__ == "__main__":
    sys.exit(main())
