"""One changed file as a part of a diff that ``git apply`` takes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .binary import binary_patch, blob_name
from .lines import Budget, hunks

# Beyond this a diff is nothing a person reads, and the file is taken as binary.
MAX_TEXT_BYTES = 2 << 20
MAX_TEXT_LINES = 20_000
# A binary file is in the diff whole, as it was and as it is, a quarter larger, and in memory.
MAX_BINARY_BYTES = 16 << 20
REGULAR, EXECUTABLE, SYMLINK = "100644", "100755", "120000"


@dataclass(frozen=True, slots=True)
class Version:
    """A file at one time: its mode as git writes it, and its bytes (of a link, its target). An int is the size of too much.

    Contents with the same ``digest`` are the same; "" is not known.
    """

    mode: str
    data: bytes | int
    digest: str = ""

    def same(self, other: Version) -> bool:
        """Whether the content is surely the same."""
        if self.digest and self.digest == other.digest:
            return True
        return not isinstance(self.data, int) and self.data == other.data


def file_patch(path: str, before: Version | None, after: Version | None, budget: Budget | None = None) -> str:
    """What changed at ``path``; None is no file there. Bytes that are no UTF-8 stand in it as surrogate escapes.

    Of content that is too large there is one line that says so, which ``git apply`` passes over. A file that became a link, or the
    other way round, goes and comes: no patch changes the type. ``budget`` is what the comparisons of several files may take
    together.
    """
    if before and after and (before.mode == SYMLINK) != (after.mode == SYMLINK):
        return file_patch(path, before, None) + file_patch(path, None, after)
    a, b = quoted(f"a/{path}"), quoted(f"b/{path}")
    head = _head(before, after, a, b)
    if before and after and before.same(after):
        return head if before.mode != after.mode else ""
    old, new = before.data if before else None, after.data if after else None
    if isinstance(old, int) or isinstance(new, int):
        return f"Not in this diff, too large: {a} ({_size(old)}) to {b} ({_size(new)})\n"
    kept_mode = f" {after.mode}" if before and after and before.mode == after.mode else ""
    head += f"index {blob_name(old)}..{blob_name(new)}{kept_mode}\n"
    if not (_is_text(old or b"") and _is_text(new or b"")):
        return head + binary_patch(old, new)
    names = ("/dev/null" if old is None else a, "/dev/null" if new is None else b)
    texts = ((data or b"").decode("utf-8", "surrogateescape") for data in (old, new))
    return head + _hunks(next(texts), next(texts), *names, budget)


def _head(before: Version | None, after: Version | None, a: str, b: str) -> str:
    head = f"diff --git {a} {b}\n"
    if before is None and after is not None:
        return f"{head}new file mode {after.mode}\n"
    if after is None and before is not None:
        return f"{head}deleted file mode {before.mode}\n"
    if before and after and before.mode != after.mode:
        return f"{head}old mode {before.mode}\nnew mode {after.mode}\n"
    return head


def _hunks(before: str, after: str, a: str, b: str, budget: Budget | None) -> str:
    # git takes a name in these two lines to its end; one with a space is closed by a tab
    a, b = (f"{name}\t" if " " in name and not name.startswith('"') else name for name in (a, b))
    lines = list(hunks(_lines(before), _lines(after), budget))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"--- {a}\n+++ {b}\n{text}" if lines else ""


def _lines(text: str) -> list[str]:
    """Lines end at a line feed and nowhere else, as in git."""
    parts = text.split("\n")
    return [f"{p}\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _is_text(data: bytes) -> bool:
    return len(data) <= MAX_TEXT_BYTES and b"\0" not in data and data.count(b"\n") <= MAX_TEXT_LINES


def _size(content: bytes | int | None) -> str:
    return "none" if content is None else f"{content if isinstance(content, int) else len(content)} bytes"


def quoted(name: str) -> str:
    """A name as git writes it: quoted, with octal bytes, if it holds anything but printable text."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return name
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
