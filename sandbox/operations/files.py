"""The operations on files and folders, and on what moves them in and out."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field

from sandbox.errors import ErrorCode
from sandbox.limits import Limits
from sandbox.messages.faults import fault_error
from sandbox.text.excerpt import SHOWN_CHARS, first_lines, first_part, size_in_bytes, without_middle
from sandbox.text.masking import Mask

from .base import Change, Excerpt, Path, Prepared, Request, Transfer
from .result import Result
from .table import operation

FileType = Literal["file", "directory", "symlink", "other"]


class ReadResult(Excerpt):
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

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the content, or its beginning in ``chars`` characters and a last line that says which part it is."""
        if self.binary:
            return (
                f"[{self.path} is a binary file of {self.size_bytes} bytes: it is not shown as text. "
                f"Look at it with run, as in: head -c 256 {shlex.quote(self.path)} | od -c]"
            )
        shown = first_part(self.content, chars)
        if shown == self.content and not self.truncated:
            return self.content or self._nothing()
        if self.end_line is not None and self.start_line is not None and shown.endswith("\n"):
            last = self.start_line + shown.count("\n") - 1 if shown != self.content else self.end_line
            of = self.total_lines or "many"
            return f"{shown}[lines {self.start_line}-{last} of {of} are shown; read on with start_line={last + 1}]"
        if self.offset is None and self.start_line != 1:
            return f"{shown}\n[line {self.start_line} is too long to be shown whole; read a part of it with offset and max_bytes]"
        start = self.offset or 0
        start -= len(number) if shown.startswith(number := f"{self.start_line or 0:6d}\t") else 0
        end = self.next_offset if shown == self.content and self.next_offset else start + size_in_bytes(shown)
        return f"{shown}\n[bytes {self.offset or 0}-{end} of {self.size_bytes} are shown; read on with offset={end}]"

    def _nothing(self) -> str:
        return f"[{self.path} is empty]" if self.size_bytes == 0 else f"[nothing of {self.path} is in this range]"


@operation("read", ReadResult, repeatable=True)
class Read(Request):
    """Read a text file, whole or a range of it.

    Give start_line and end_line (1-based, inclusive) or offset and max_bytes. Long files are cut at the read limit; the
    result then says truncated=true and how many lines the file has. A binary file is described, not shown, unless a byte
    range is asked for.
    """

    path: Path
    start_line: int | None = Field(None, ge=1, description="First line to read, 1-based.")
    end_line: int | None = Field(None, ge=1, description="Last line to read, inclusive.")
    offset: int | None = Field(None, ge=0, description="First byte to read, instead of lines.")
    max_bytes: int | None = Field(None, ge=1, description="Maximum number of bytes to read.")
    numbered: bool = Field(False, description="Put line numbers before the lines.")

    def result_fields(self, fields: dict[str, Any], blob: bytes, reply: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return fields if "content" in fields else {**fields, "content": blob.decode("utf-8", "replace")}


class WriteResult(Result):
    """What was written; ``created`` is true if the file did not exist before."""

    path: str
    size_bytes: int = 0
    created: bool = False

    def _words(self) -> str:
        """Return one line that says what was written."""
        return f"[{'created' if self.created else 'replaced'} {self.path}, {self.size_bytes} bytes]"


@operation("write", WriteResult, changes_files=True, method_notes="For ``request_id`` see ``run``.")
class Write(Change):
    """Write a whole text file, atomically: it is replaced in one step or left as it was.

    Parent folders are made. The mode of an existing file is kept.
    """

    path: Path
    content: str = Field(description="The whole new content of the file.")

    def prepare(self, limits: Limits) -> Prepared:
        """See the base class; the content goes beside the arguments, unless it is no valid Unicode: then the guest refuses it."""
        prepared = super().prepare(limits)
        try:
            content = self.content.encode()
        except UnicodeEncodeError:
            _check_size(self, len(self.content.encode("utf-8", "surrogatepass")), limits)
            return prepared
        _check_size(self, len(content), limits)
        return prepared._replace(args={**prepared.args, "content": ""}, content=content)


class Candidate(Result):
    """A place in a file: ``start_line`` counts from 1, ``text`` is the lines there, ``similarity`` is 0 to 1."""

    start_line: int
    end_line: int
    text: str
    similarity: float = 1.0

    def _words(self) -> str:
        """Return the lines below a heading with their numbers."""
        one = self.start_line == self.end_line
        tabs = " (indented with tabs)" if any(line.startswith("\t") for line in self.text.splitlines()) else ""
        return f"{'Line' if one else 'Lines'} {self.start_line}{'' if one else f'-{self.end_line}'}{tabs}:\n{self.text}"


class EditResult(Result):
    """``diff`` is a unified diff of the change; ``candidates``, in a failure, are the nearest places or all that match."""

    path: str
    replacements: int = 0
    size_bytes: int = 0
    first_line: int | None = None
    diff: str = ""
    candidates: tuple[Candidate, ...] = ()

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return the diff, or the candidates."""
        if self.candidates:
            return without_middle("\n".join(candidate.to_text() for candidate in self.candidates), chars)
        return without_middle(self.diff, chars)


@operation(
    "edit",
    EditResult,
    changes_files=True,
    method_notes="The failures ``text_not_found`` and ``text_not_unique`` show candidates.",
)
class Edit(Change):
    """Replace one exact piece of text in a file.

    old_text must occur exactly once, white space included, or pass replace_all. If it is not found, the nearest lines are
    shown; if it is found several times, the places are shown: add surrounding lines until it is unique. Line endings of the
    file are kept.
    """

    path: Path
    old_text: str = Field(min_length=1, description="The exact text to replace.")
    new_text: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")

    def prepare(self, limits: Limits) -> Prepared:
        _check_size(self, len(self.new_text.encode("utf-8", "surrogatepass")), limits)
        return super().prepare(limits)


def _check_size(request: Write | Edit, size: int, limits: Limits) -> None:
    if size > limits.write_bytes:
        fields = {"path": request.path, "size_bytes": size, "limit": limits.write_bytes}
        raise fault_error(ErrorCode.file_too_large, fields, request.operation)


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

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return one line for each entry; folders end in a slash. A last line says how many are left out."""
        lines = [_entry_line(e) for e in self.entries]
        if not lines:
            return f"[{self.path} is empty]"
        shown = first_lines(lines, chars)
        if self.truncated or len(shown) < len(lines):
            of = f"{self.total_entries:,}" if self.total_entries > len(shown) else "more"
            shown = [
                *shown,
                f"[the first {len(shown):,} of {of} entries are shown: list one folder of it, or use a lower depth]",
            ]
        return "\n".join(shown)


@operation("list", ListResult, repeatable=True, positional=("path",))
class List(Request):
    """List a folder: names, types, sizes; deeper with depth."""

    path: Path = "."
    depth: int = Field(1, ge=1, le=20, description="How many levels to list.")
    hidden: bool = Field(True, description="Show names that begin with a dot.")
    max_entries: int = Field(500, ge=1, le=10000, description="Maximum number of entries.")


class StatResult(Result):
    """``mode`` is the permission bits; ``owner`` is the name of ``uid`` in /etc/passwd, or None if it has no name there.

    ``group`` is the same for ``gid`` and /etc/group. ``attributes`` are the extended attributes whose names begin with ``user.``.
    ``mtime_seconds`` is the time of the last change, in seconds since 1970. ``link_target`` is where a link points: ``type`` and
    the rest are those of what it points to, and "symlink" where that cannot be reached.
    """

    path: str
    type: FileType = "file"
    size_bytes: int = Field(0, ge=0)
    mode: int = Field(0, ge=0, le=0o7777)
    uid: int = Field(0, ge=0)
    gid: int = Field(0, ge=0)
    owner: str | None = Field(None, max_length=256)
    group: str | None = Field(None, max_length=256)
    mtime_seconds: float = 0.0
    link_target: str | None = Field(None, max_length=4096)
    attributes: dict[str, str] = Field(default_factory=dict, max_length=64)

    def to_text(self, chars: int = SHOWN_CHARS) -> str:  # noqa: ARG002
        """Return one line like those of ls -l."""
        kinds = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "other": 0}
        mode = stat.filemode(kinds[self.type] | self.mode)
        when = datetime.fromtimestamp(self.mtime_seconds, UTC).isoformat(timespec="seconds")
        link = "" if self.link_target is None else f" -> {self.link_target}"
        return f"{mode} {self.owner or self.uid}:{self.gid} {self.size_bytes} bytes {when} {self.path}{link}"


@operation("stat", StatResult, repeatable=True, for_models=False)
class Stat(Request):
    """Say what a path is: type, size, mode, owner, time of the last change, and where it points if it is a link.

    Links are followed. A link that leads nowhere, or outside, is described itself.
    """

    path: Path


class ListDetailsResult(Result):
    """``entries`` are in the order of ``list``; ``truncated`` says that there are more."""

    path: str
    entries: tuple[StatResult, ...] = ()
    truncated: bool = False

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return one line for each entry, like those of ls -l."""
        lines = first_lines([each.to_text() for each in self.entries], chars)
        return "\n".join([*lines, *(["[there are more]"] if self.truncated or len(lines) < len(self.entries) else [])])


@operation("list_details", ListDetailsResult, repeatable=True, for_models=False)
class ListDetails(Request):
    """List a folder with the status of each entry, as stat describes it; deeper with depth."""

    path: Path
    depth: int = Field(1, ge=1, le=20, description="How many levels to list.")
    max_entries: int = Field(1000, ge=1, le=10000, description="Maximum number of entries.")


def _entry_line(entry: Entry) -> str:
    if entry.type == "directory":
        return f"{entry.path}/"
    if entry.type == "symlink":
        return f"{entry.path} -> {entry.target}"
    if entry.type != "file":
        return f"{entry.path} (special file)"
    return f"{entry.path} ({entry.size_bytes} bytes)" if entry.size_bytes else f"{entry.path} (empty)"


class Match(Result):
    """``line`` counts from 1; ``text`` is the matching line: of a long one, 1,000 characters around the match."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SearchResult(Excerpt):
    """``total_matches`` is known if the matches were truncated and could be counted.

    Where nothing matched in a folder: ``ignored`` and ``binary`` are the first files that do have a match and were left out,
    because an ignore file names them or because they are binary; ``left_out_files`` counts all of those, and ``left_out_unknown``
    says that there was no time to look at all of them. ``unreadable`` says that something could not be read at all.
    """

    matches: tuple[Match, ...] = ()
    files_with_matches: int = 0
    truncated: bool = False
    total_matches: int | None = None
    ignored: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    left_out_files: int = 0
    left_out_unknown: bool = False
    unreadable: bool = False
    engine: Literal["ripgrep", "builtin"] = "ripgrep"

    def to_text(self, chars: int = SHOWN_CHARS) -> str:
        """Return matches as grep prints them: path:line:text, context as path-line-text. A last line says if some are missing."""
        blocks = first_lines([_match_text(match) for match in self.matches], chars)
        if not blocks:
            return self._nothing()
        text = first_part("\n".join(blocks), chars)
        if self.truncated or len(blocks) < len(self.matches):
            known = self.total_matches or (None if self.truncated else len(self.matches))
            of_all = "" if known is None else f" of {known}"
            text += (
                f"\n[the first {len(blocks)}{of_all} matches; narrow the pattern, the path or the glob for the rest]"
            )
        return text

    def _nothing(self) -> str:
        """Return lines that say that nothing matched, and which files were left out."""
        partly = self.left_out_files or self.left_out_unknown or self.unreadable
        lines = ["[no match in the files that were searched]" if partly else "[no match]"]
        more = self.left_out_files - len(self.ignored) - len(self.binary)
        for kind, paths in (("Ignored files (.gitignore)", self.ignored), ("Binary files", self.binary)):
            if paths:
                beside = f" and {more} more" if more > 0 else ""
                lines.append(
                    f"[{kind} that match were left out: {', '.join(paths)}{beside}. Search one with path={paths[0]!r}.]"
                )
                more = 0
        if self.left_out_unknown:
            lines.append("[Not all ignored files (.gitignore) were looked at: search their folder by its path.]")
        if self.unreadable:
            lines.append("[Some files or folders could not be read. Find them with run: find . ! -readable]")
        return "\n".join(lines)


@operation("search", SearchResult, repeatable=True, positional=("pattern", "path"))
class Search(Request):
    """Search file contents with a regular expression (ripgrep); respects .gitignore.

    Answers with path, line number and line of each match.
    """

    pattern: str = Field(
        min_length=1, max_length=4096, description="Regular expression, or plain text with literal=true."
    )
    path: Path = "."
    glob: str | None = Field(None, max_length=512, description="Only files whose name matches, as in '*.py'.")
    literal: bool = Field(False, description="Take the pattern as plain text.")
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")
    context_lines: int = Field(0, ge=0, le=20, description="Lines to show before and after each match.")
    max_matches: int = Field(100, ge=1, le=5000, description="Maximum number of matches.")


def _match_text(match: Match) -> str:
    first = match.line - len(match.before)
    lines = [f"{match.path}-{first + i}-{text}" for i, text in enumerate(match.before)]
    lines.append(f"{match.path}:{match.line}:{match.text}")
    lines += [f"{match.path}-{match.line + 1 + i}-{text}" for i, text in enumerate(match.after)]
    return "\n".join(lines)


class MakeDirResult(Result):
    """``created`` is false if the folder existed already."""

    path: str
    created: bool = False

    def _words(self) -> str:
        """Return one line that says what was made."""
        return f"[created the folder {self.path}]" if self.created else f"[the folder {self.path} was there already]"


@operation("make_dir", MakeDirResult, changes_files=True)
class MakeDir(Change):
    """Make a folder, and its parents; a folder that is already there is fine."""

    path: Path


class MoveResult(Result):
    """The paths before and after."""

    source: str
    target: str

    def _words(self) -> str:
        """Return one line that says what was moved."""
        return f"[moved {self.source} to {self.target}]"


@operation(
    "move",
    MoveResult,
    changes_files=True,
    method_notes="An existing target is the failure ``path_exists`` unless ``overwrite`` is set.",
)
class Move(Change):
    """Move or rename a file or folder; an existing target is refused unless overwrite is set."""

    source: Path
    target: Path
    overwrite: bool = Field(False, description="Replace an existing file at the target.")


class DeleteResult(Result):
    """``entries_deleted`` counts files and folders, ``path`` itself among them."""

    path: str
    entries_deleted: int = 0

    def _words(self) -> str:
        """Return one line that says what was deleted, or "" if nothing was."""
        if not self.entries_deleted:
            return ""
        inside = "" if self.entries_deleted == 1 else f": {self.entries_deleted} files and folders"
        return f"[deleted {self.path}{inside}]"


@operation("delete", DeleteResult, changes_files=True)
class Delete(Change):
    """Delete a file, or a folder with recursive=true. A symlink itself is deleted, never what it points to."""

    path: Path
    recursive: bool = Field(False, description="Delete a folder with all that is in it.")


class UploadResult(Result):
    path: str
    files: int = 0
    size_bytes: int = 0


@operation("upload", UploadResult, changes_files=True, for_models=False)
class Upload(Transfer):
    """Copy a file or a folder of the host, or bytes, into the sandbox."""

    path: Path
    kind: Literal["file", "tree"] = "file"
    mode: int | None = Field(None, ge=0, le=0o777, description="Mode of the file.")
    attributes: dict[str, str] | None = None


class DownloadResult(Result):
    """``saved_to`` is the host path of what was saved; ``content`` holds the bytes of a file that was not."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64")
    path: str
    kind: Literal["file", "tree"] = "file"
    files: int = 0
    size_bytes: int = 0
    content: bytes | None = Field(default=None, repr=False)
    saved_to: str | None = None
    skipped: tuple[str, ...] = ()

    def masked(self, mask: Mask) -> Self:
        """See the base class; the bytes are for the host's own code, which needs them as they are."""
        return super().masked(mask).model_copy(update={"content": self.content})


@operation("download", DownloadResult, repeatable=True, for_models=False)
class Download(Transfer):
    """Copy a file or a folder out of the sandbox."""

    path: Path
    without: tuple[str, ...] = Field((), max_length=20, description="Names that are left out, at any depth.")
