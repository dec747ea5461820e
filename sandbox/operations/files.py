"""Requests on files and folders."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sandbox import results

from .base import Change, Path, Request


class Read(Request):
    """Read a text file, whole or a range of it.

    Give start_line and end_line (1-based, inclusive) or offset and max_bytes. Long files are cut at the read limit; the
    result then says truncated=true and how many lines the file has. A binary file is described, not shown, unless a byte
    range is asked for.
    """

    operation: ClassVar[str] = "read"
    result: ClassVar[type[results.Result]] = results.ReadResult
    path: Path
    start_line: int | None = Field(None, ge=1, description="First line to read, 1-based.")
    end_line: int | None = Field(None, ge=1, description="Last line to read, inclusive.")
    offset: int | None = Field(None, ge=0, description="First byte to read, instead of lines.")
    max_bytes: int | None = Field(None, ge=1, description="How many bytes to read at most.")
    numbered: bool = Field(False, description="Put line numbers before the lines.")


class Write(Change):
    """Write a whole text file, atomically: it is replaced in one step or left as it was.

    Parent folders are made. The mode of an existing file is kept.
    """

    operation: ClassVar[str] = "write"
    result: ClassVar[type[results.Result]] = results.WriteResult
    path: Path
    content: str = Field(description="The whole new content of the file.")


class Edit(Change):
    """Replace one exact piece of text in a file.

    old_text must occur exactly once, white space included, or pass replace_all. If it is not found, the nearest lines are
    shown; if it is found several times, the places are shown: add surrounding lines until it is unique. Line endings of the
    file are kept.
    """

    operation: ClassVar[str] = "edit"
    result: ClassVar[type[results.Result]] = results.EditResult
    path: Path
    old_text: str = Field(min_length=1, description="The exact text to replace.")
    new_text: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


class List(Request):
    """List a folder: names, types, sizes; deeper with depth."""

    operation: ClassVar[str] = "list"
    result: ClassVar[type[results.Result]] = results.ListResult
    path: Path = "."
    depth: int = Field(1, ge=1, le=20, description="How many levels to list.")
    hidden: bool = Field(True, description="Show names that begin with a dot.")
    max_entries: int = Field(500, ge=1, le=10000, description="How many entries at most.")


class Stat(Request):
    """Say what a path is: type, size, mode, owner, time of the last change, and where it points if it is a link.

    Links are followed. A link that leads nowhere, or outside, is described itself.
    """

    operation: ClassVar[str] = "stat"
    result: ClassVar[type[results.Result]] = results.StatResult
    path: Path


class Search(Request):
    """Search file contents with a regular expression (ripgrep); respects .gitignore.

    Answers with path, line number and line of each match.
    """

    operation: ClassVar[str] = "search"
    result: ClassVar[type[results.Result]] = results.SearchResult
    pattern: str = Field(
        min_length=1, max_length=4096, description="Regular expression, or plain text with literal=true."
    )
    path: Path = "."
    glob: str | None = Field(None, max_length=512, description="Only files whose name matches, as in '*.py'.")
    literal: bool = Field(False, description="Take the pattern as plain text.")
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")
    context_lines: int = Field(0, ge=0, le=20, description="Lines to show before and after each match.")
    max_matches: int = Field(100, ge=1, le=5000, description="How many matches at most.")


class MakeDir(Change):
    """Make a folder, and its parents; a folder that is already there is fine."""

    operation: ClassVar[str] = "make_dir"
    result: ClassVar[type[results.Result]] = results.MakeDirResult
    path: Path


class Move(Change):
    """Move or rename a file or folder; an existing target is refused unless overwrite is set."""

    operation: ClassVar[str] = "move"
    result: ClassVar[type[results.Result]] = results.MoveResult
    source: Path
    target: Path
    overwrite: bool = Field(False, description="Replace an existing file at the target.")


class Delete(Change):
    """Delete a file, or a folder with recursive=true. A symlink itself is deleted, never what it points to."""

    operation: ClassVar[str] = "delete"
    result: ClassVar[type[results.Result]] = results.DeleteResult
    path: Path
    recursive: bool = Field(False, description="Delete a folder with all that is in it.")


class Upload(Request):
    """Copy a file or a folder of the host, or bytes, into the sandbox."""

    operation: ClassVar[str] = "upload"
    result: ClassVar[type[results.Result]] = results.UploadResult
    path: Path
    kind: Literal["file", "tree"] = "file"
    mode: int | None = Field(None, ge=0, le=0o777, description="Mode of the file.")


class Download(Request):
    """Copy a file or a folder out of the sandbox."""

    operation: ClassVar[str] = "download"
    result: ClassVar[type[results.Result]] = results.DownloadResult
    path: Path
    without: tuple[str, ...] = Field((), max_length=20, description="Names that are left out, at any depth.")
