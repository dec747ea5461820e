"""Write one changed file as part of a diff that ``git apply`` accepts."""

from __future__ import annotations

import os

from sandbox.frozen import dataclass

from .binary import binary_patch, blob_name
from .lines import Budget, hunks

# A larger file is treated as binary: nobody reads such a diff.
MAX_TEXT_BYTES = 2 << 20
MAX_TEXT_LINES = 20_000
# The diff of a binary file holds both versions in full, a quarter larger, and in memory.
MAX_BINARY_BYTES = 16 << 20
REGULAR, EXECUTABLE, SYMLINK = "100644", "100755", "120000"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a file: its mode as git writes it, and its bytes (for a link, its target).

    ``data`` is an int, the size, for a file that is too large. Contents with the same ``digest`` are the same; "" is unknown.
    """

    mode: str
    data: bytes | int
    digest: str = ""

    def same(self, other: Version) -> bool:
        """Return whether the content is certainly the same."""
        if self.digest and self.digest == other.digest:
            return True
        return not isinstance(self.data, int) and self.data == other.data


def file_patch(path: str, before: Version | None, after: Version | None, budget: Budget | None = None) -> str:
    """Return the diff of ``path``. None means a missing file. Bytes that are not UTF-8 become surrogate escapes.

    For content that is too large the diff is one line that says so, which ``git apply`` ignores. A file that became a link, or a
    link that became a file, is deleted and added, because no patch changes the type. ``budget`` is shared by the comparisons of
    several files.
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
    # git reads a name in these two lines to the end of the line; a tab ends one with a space
    a, b = (f"{name}\t" if " " in name and not name.startswith('"') else name for name in (a, b))
    lines = list(hunks(_lines(before), _lines(after), budget))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"--- {a}\n+++ {b}\n{text}" if lines else ""


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as git does."""
    parts = text.split("\n")
    return [f"{p}\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _is_text(data: bytes) -> bool:
    return len(data) <= MAX_TEXT_BYTES and b"\0" not in data and data.count(b"\n") <= MAX_TEXT_LINES


def _size(content: bytes | int | None) -> str:
    return "none" if content is None else f"{content if isinstance(content, int) else len(content)} bytes"


def quoted(name: str) -> str:
    """Return a name as git writes it: in quotes and with octal bytes if it holds anything but printable ASCII."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return name
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
