"""What each operation answers: frozen values, the same fields in success and failure as far as they are known."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .plain_text import plain
from .waits import WaitingFor

FileType = Literal["file", "directory", "symlink", "other"]


class Result(BaseModel):
    """Base of all results: frozen; fields the sandbox sends beyond the known ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    """``line`` is 1-based; ``text`` the matching line, cut at 1,000 characters."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SearchResult(Result):
    matches: tuple[Match, ...] = ()
    files_with_matches: int = 0
    truncated: bool = False
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
            lines.append(
                f"[the first {len(self.matches)} matches; narrow the pattern, the path or the glob for the rest]"
            )
        return "\n".join(lines) or "[no match]"


class MakeDirResult(Result):
    path: str
    created: bool = False


class MoveResult(Result):
    source: str
    target: str


class DeleteResult(Result):
    path: str
    entries_deleted: int = 0


class RunResult(Result):
    """What a command did.

    ``exit_code`` is None while it runs and when a signal ended it; ``signal`` then names it ("SIGKILL"). ``output`` is both
    streams in the order of arrival, ``stdout`` and ``stderr`` the same bytes apart; all three are cut to head and tail where
    ``truncated`` is true. ``encoding_errors`` says that bytes which are no UTF-8 were replaced in these texts; ``stdout_bytes`` and
    ``stderr_bytes`` are what was kept as it was printed, for callers in Python: they are no part of the envelope as JSON or
    text. ``output_bytes`` is all the command produced; ``spill_path`` holds the whole of it up to the spill limit
    (``spill_truncated`` beyond). ``left_running`` is the number of processes it left behind. ``waiting_for`` is known only while it
    runs.
    """

    id: str = ""
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False
    output: str = ""
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    stderr_bytes: bytes = Field(default=b"", exclude=True, repr=False)
    encoding_errors: bool = False
    output_bytes: int = 0
    truncated: bool = False
    spill_path: str | None = None
    spill_truncated: bool = False
    left_running: int = 0
    running: bool = False
    cwd: str | None = None
    duration_ms: float = 0.0
    waiting_for: WaitingFor | None = None

    def to_text(self) -> str:
        """The output as a terminal would show it (see ``plain_text``), then one line with the status."""
        if self.running:
            status = f"[running in the background with id {self.id}]"
            if self.waiting_for is not None:
                status = f"[running with id {self.id}; {self.waiting_for.to_text()}]"
        elif self.signal:
            status = f"[killed by {self.signal}{', out of memory' if self.oom_killed else ''}]"
        elif self.exit_code is None:
            status = ""
        else:
            status = f"[exit code {self.exit_code}]"
        if self.truncated:
            where = f"; all of it in {self.spill_path}" if self.spill_path and not self.spill_truncated else ""
            where = where or (f"; the first part of it in {self.spill_path}" if self.spill_path else "")
            status += f" [{self.output_bytes} bytes of output, cut{where}]"
        return "\n".join(part for part in (plain(self.output).rstrip("\n"), status) if part)


class LogsResult(Result):
    """``content`` is the output from ``offset`` to ``next_offset``; ``total_bytes`` is all the command has produced.

    ``encoding_errors`` says that bytes which are no UTF-8 were replaced in it.
    """

    id: str
    content: str = ""
    encoding_errors: bool = False
    offset: int = 0
    next_offset: int = 0
    total_bytes: int = 0
    kept_bytes: int = 0
    running: bool = False
    exit_code: int | None = None
    signal: str | None = None
    left_running: int = 0
    waiting_for: WaitingFor | None = None

    def to_text(self) -> str:
        """The output as a terminal would show it, then one line with the state of the command."""
        state = (
            "running" if self.running else f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}"
        )
        if self.waiting_for is not None:
            state += f"; {self.waiting_for.to_text()}"
        where = f"[{state}; bytes {self.offset}-{self.next_offset} of {self.total_bytes}]"
        return f"{plain(self.content).rstrip(chr(10))}\n{where}".lstrip("\n")


class KillResult(Result):
    """``killed`` counts the processes that were alive; ``survivors`` those that still are (0 in a success).

    With ``signal`` nothing was killed: ``signalled`` processes got that signal, and may go on.
    """

    id: str
    signal: str | None = None
    signalled: int = 0
    killed: int = 0
    survivors: int = 0
    already_ended: bool = False
    collateral: tuple[str, ...] = ()


class EndSessionResult(Result):
    """``existed`` is false where there was no such session."""

    session: str
    existed: bool = False


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


class Link(Result):
    text: str
    url: str


class BrowseResult(Result):
    """``text`` is the readable page from ``offset`` on; ``total_chars`` the length of all of it."""

    url: str
    final_url: str = ""
    status: int | None = None
    content_type: str = ""
    title: str = ""
    text: str = ""
    links: tuple[Link, ...] = ()
    offset: int = 0
    total_chars: int = 0
    size_bytes: int = 0
    truncated: bool = False
    redirects: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sane(self) -> BrowseResult:
        if self.status is not None and not 100 <= self.status <= 999:
            raise ValueError("status is no HTTP status")
        return self

    def to_text(self) -> str:
        """Status line, text, links."""
        head = f"[{self.status} {self.final_url or self.url} {self.content_type}]"
        links = [f"[{i}] {link.text}: {link.url}" for i, link in enumerate(self.links, 1)]
        cut = (
            f"[characters {self.offset}-{self.offset + len(self.text)} of {self.total_chars}]" if self.truncated else ""
        )
        return "\n".join(part for part in (head, self.title, self.text, "\n".join(links), cut) if part)
