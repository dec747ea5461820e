"""Results of the operations on files and folders, and of what moves them in and out."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from .base import Result

FileType = Literal["file", "directory", "symlink", "other"]


class ReadResult(Result):
    """``content`` is text (invalid UTF-8 replaced); for a binary file it is empty and ``binary`` is true."""

    path: str
    content: str = ""
    size_bytes: int = 0
    total_lines: int | None = None
    start_line: int | None = None
    end_line: int | None = None
    offset: int | None = None
    next_offset: int | None = None
    truncated: bool = False
    binary: bool = False
    encoding_errors: bool = False

    def to_text(self) -> str:
        """The content as it is shown to a model, with a last line that says what is missing."""
        if self.binary:
            return f"[{self.path} is binary, {self.size_bytes} bytes; read it with offset and max_bytes, or run a tool on it]"
        more = ""
        if self.truncated and self.end_line is not None:
            more = f"\n[lines {self.start_line}-{self.end_line} of {self.total_lines or 'many'}; {self.size_bytes} bytes in all]"
        elif self.truncated:
            more = f"\n[bytes {self.offset}-{self.next_offset} of {self.size_bytes}]"
        return (self.content or f"[{self.path} is empty]") + more


class WriteResult(Result):
    path: str
    size_bytes: int = 0
    created: bool = False


class Candidate(Result):
    """A place in a file: ``start_line`` is 1-based, ``text`` the lines there, ``similarity`` 0 to 1."""

    start_line: int
    end_line: int
    text: str
    similarity: float = 1.0


class EditResult(Result):
    """``diff`` is a unified diff of what changed; ``candidates`` the nearest or the several matches of a failure."""

    path: str
    replacements: int = 0
    size_bytes: int = 0
    first_line: int | None = None
    diff: str = ""
    candidates: tuple[Candidate, ...] = ()

    def to_text(self) -> str:
        """The diff, or the candidates."""
        if self.candidates:
            return "\n".join(
                f"line {c.start_line}-{c.end_line} ({c.similarity:.0%} alike):\n{c.text}" for c in self.candidates
            )
        return self.diff


class Entry(Result):
    path: str
    type: FileType
    size_bytes: int | None = None
    target: str | None = None


class ListResult(Result):
    path: str
    entries: tuple[Entry, ...] = ()
    total_entries: int = 0
    truncated: bool = False

    def to_text(self) -> str:
        """One line an entry; folders end in a slash."""
        lines = [_entry_line(e) for e in self.entries] or [f"[{self.path} is empty]"]
        if self.truncated:
            lines.append(f"[{len(self.entries)} entries shown, there are more]")
        return "\n".join(lines)


def _entry_line(entry: Entry) -> str:
    if entry.type == "directory":
        return f"{entry.path}/"
    if entry.type == "symlink":
        return f"{entry.path} -> {entry.target}"
    return f"{entry.path} ({entry.size_bytes} bytes)" if entry.type == "file" else f"{entry.path} (special file)"


class Match(Result):
    """``line`` is 1-based; ``text`` the matching line, of a long one 1,000 characters around the match and how many were cut."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SearchResult(Result):
    """``total_matches`` is known where the matches were truncated and could be counted.

    Where nothing matched in a folder: ``ignored`` and ``binary`` are the first files that do have a match and were left out,
    because an ignore file names them or because they are binary; ``left_out_files`` counts all of those, and ``left_out_unknown``
    says that there was no time to look at all of them.
    """

    matches: tuple[Match, ...] = ()
    files_with_matches: int = 0
    truncated: bool = False
    total_matches: int | None = None
    ignored: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    left_out_files: int = 0
    left_out_unknown: bool = False
    engine: Literal["ripgrep", "builtin"] = "ripgrep"

    def to_text(self) -> str:
        """Grep's own form: path:line:text, context as path-line-text."""
        lines: list[str] = []
        for m in self.matches:
            first = m.line - len(m.before)
            lines += [f"{m.path}-{first + i}-{t}" for i, t in enumerate(m.before)]
            lines.append(f"{m.path}:{m.line}:{m.text}")
            lines += [f"{m.path}-{m.line + 1 + i}-{t}" for i, t in enumerate(m.after)]
        if self.truncated:
            of_all = f" of {self.total_matches}" if self.total_matches else ""
            lines.append(
                f"[the first {len(self.matches)}{of_all} matches; narrow the pattern, the path or the glob for the rest]"
            )
        return "\n".join(lines) or self._nothing()

    def _nothing(self) -> str:
        """That there is no match, and where there is one that was not looked at."""
        lines = ["[no match in the files that were searched]" if self.left_out_files or self.left_out_unknown else "[no match]"]
        kinds = (("in .gitignore or a file like it", self.ignored), ("binary", self.binary))
        for why, paths in kinds:
            if paths:
                more = self.left_out_files - len(self.ignored) - len(self.binary)
                beside = f" ({more} more were left out)" if more > 0 else ""
                lines.append(f"[left out, but with a match, as they are {why}: {', '.join(paths)}{beside}. Search them by path=]")
        if self.left_out_unknown:
            lines.append("[not all files that .gitignore names were looked at: give their folder as path]")
        return "\n".join(lines)


class MakeDirResult(Result):
    path: str
    created: bool = False


class MoveResult(Result):
    source: str
    target: str


class DeleteResult(Result):
    path: str
    entries_deleted: int = 0


class UploadResult(Result):
    path: str
    files: int = 0
    size_bytes: int = 0


class DownloadResult(Result):
    """``content`` holds the bytes of a file that was not saved to the host; ``saved_to`` the place where it was."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64")
    path: str
    kind: Literal["file", "tree"] = "file"
    files: int = 0
    size_bytes: int = 0
    content: bytes | None = Field(default=None, repr=False)
    saved_to: str | None = None
    skipped: tuple[str, ...] = ()
