"""The operations of a sandbox as values: a typed request and a typed result each.

A request's docstring and field descriptions are what a model reads; ``OPERATIONS`` is the table from which tools, methods and the
wire are made. Paths may be relative (to the working folder of the sandbox) or absolute inside its roots.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from . import interactive_results, results

Path = Annotated[str, Field(min_length=1, max_length=4096, description="Path, relative to the workspace or absolute.")]


class Request(BaseModel):
    """Base of all requests: frozen, unknown arguments refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
    operation: ClassVar[str]
    result: ClassVar[type[results.Result]]


class Change(Request):
    """Base of requests that may be made again after a broken connection without being carried out twice."""

    request_id: str | None = Field(None, min_length=1, max_length=64)


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


class Run(Change):
    """Run a shell command and wait for it, or start it in the background.

    The working folder and exported variables carry over to the next run of the same session. A command that exits with an
    error is still a success of the tool: look at exit_code. After timeout_seconds everything the command started is killed
    and the output so far is returned. Long output is cut in the middle; spill_path then names the file with the rest. Give
    either command (shell text) or argv (a program and its arguments, no shell).

    For a program that asks or is driven by keys, give wait_seconds: after that long the command goes on, with what it waits for in
    waiting_for, and send answers it; with pty=true it has a terminal, and screen shows it. timeout_seconds holds all the same.
    """

    operation: ClassVar[str] = "run"
    result: ClassVar[type[results.Result]] = results.RunResult
    command: str | None = Field(None, description="Shell text.")
    argv: tuple[str, ...] | None = Field(None, min_length=1, description="Program and arguments, run without a shell.")
    cwd: str | None = Field(None, min_length=1, max_length=4096, description="Folder to run in, for this run.")
    env: dict[str, str] | None = Field(None, description="Further environment variables, for this run.")
    stdin: str | bytes | None = Field(None, description="What the command reads on standard input.")
    timeout_seconds: float | None = Field(None, gt=0, description="Kill the command after this many seconds.")
    background: bool = Field(False, description="Start the command and return its id at once.")
    session: str | None = Field(
        "default", max_length=64, description="Session whose state to use; null for a clean one."
    )
    keep_output_bytes: int | None = Field(None, ge=0, description="How much output to return at most.")
    wait_seconds: float | None = Field(
        None, ge=0, le=86400, description="Return after this many seconds, with the command still running."
    )
    pty: bool = Field(False, description="Give the command a terminal.")
    rows: int = Field(24, ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(80, ge=1, le=300, description="Columns of the terminal.")

    def problem(self) -> str | None:
        """Why no process can be started from this; None where one can. Surrogate escapes stand for bytes."""
        if (self.command is None) == (self.argv is None):
            return "give either command or argv"
        env = self.env or {}
        for text in (self.command or "", *(self.argv or ()), self.cwd or "", *env, *env.values()):
            if "\0" in text:
                return "a NUL character in the command, its folder or its environment"
            if not _is_bytes(text):
                return f"{text[:80]!r} is not valid Unicode"
        if isinstance(self.stdin, str) and not _is_bytes(self.stdin):
            return "stdin is not valid Unicode"
        wrong = next((name for name in env if not name or "=" in name), None)
        return None if wrong is None else f"{wrong[:80]!r} is no name for a variable"


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


class Logs(Request):
    """Show the output of a command by its id, from a byte offset on; shows whether it still runs."""

    operation: ClassVar[str] = "logs"
    result: ClassVar[type[results.Result]] = results.LogsResult
    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    offset: int = Field(0, ge=0, description="Byte of the output to start at: next_offset of the last call.")
    max_bytes: int = Field(65536, ge=1, description="How many bytes at most.")


SignalName = Literal[
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGWINCH"
]  # fmt: skip


class Kill(Request):
    """Kill a command by its id, with everything it started; the result says that nothing of it is left.

    With signal, that signal is sent to all processes of the command instead, and they may go on: SIGINT is what Ctrl-C sends.
    """

    operation: ClassVar[str] = "kill"
    result: ClassVar[type[results.Result]] = results.KillResult
    id: str = Field(min_length=1, max_length=64, description="Id of the command.")
    signal: SignalName | None = Field(None, description="Signal to send to all processes of the command instead.")


class EndSession(Request):
    """Forget a session of run: its folder, variables and functions. There may be only so many; commands in it go on."""

    operation: ClassVar[str] = "end_session"
    result: ClassVar[type[results.Result]] = results.EndSessionResult
    session: str = Field(min_length=1, max_length=64, description="Name of the session.")


Id = Annotated[str, Field(min_length=1, max_length=64, description="Id of the command.")]


class Send(Request):
    """Type into a running command and see what it answers: text first, then keys, then the end of input.

    The command must have been started with wait_seconds or pty. Keys are named: enter, tab, escape, backspace, space, up, down,
    left, right, home, end, page-up, page-down, insert, delete, f1 to f12, ctrl-a to ctrl-z; ctrl-c interrupts. Line ends in text
    count as enter. With nothing to type, it waits and shows what is new; so it does for a command that has ended.
    """

    operation: ClassVar[str] = "send"
    result: ClassVar[type[results.Result]] = interactive_results.SendResult
    id: Id
    text: str = Field("", max_length=65536, description="Text to type; end it with a line end to have it read.")
    keys: tuple[Annotated[str, Field(max_length=40)], ...] = Field((), max_length=200, description="Keys to press.")
    eof: bool = Field(False, description="End the input (Ctrl-D on a terminal).")
    wait_seconds: float = Field(
        0.5, ge=0, le=600, description="Answer after this many seconds; earlier if the command waits for more input."
    )


class Resize(Request):
    """Give the terminal of a running command another size."""

    operation: ClassVar[str] = "resize"
    result: ClassVar[type[results.Result]] = interactive_results.ResizeResult
    id: Id
    rows: int = Field(ge=1, le=100, description="Lines of the terminal.")
    cols: int = Field(ge=1, le=300, description="Columns of the terminal.")


class Screen(Request):
    """Show the screen of a command with a terminal as a person would see it, and where the cursor is."""

    operation: ClassVar[str] = "screen"
    result: ClassVar[type[results.Result]] = interactive_results.ScreenResult
    id: Id


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


class Browse(Request):
    """Open a web page and read it as text with its links.

    Reaches the sandbox's own servers (http://127.0.0.1:PORT/) and, where the sandbox has a network, the world. Redirects
    are followed; a page that is not text is described. Long pages are read on with offset.
    """

    operation: ClassVar[str] = "browse"
    result: ClassVar[type[results.Result]] = results.BrowseResult
    url: str = Field(min_length=1, max_length=8192, description="http:// or https:// address.")
    offset: int = Field(0, ge=0, description="Character of the text to start at.")
    max_chars: int = Field(20000, ge=1, le=200000, description="How many characters of text at most.")
    raw: bool = Field(False, description="The body as it is, not made readable.")
    timeout_seconds: float = Field(30, gt=0, le=600, description="Give up after this many seconds.")


REQUESTS: tuple[type[Request], ...] = (
    Read, Write, Edit, List, Search, MakeDir, Move, Delete, Run, Logs, Kill, EndSession, Send, Resize, Screen, Upload, Download,
    Browse,
)  # fmt: skip
OPERATIONS: dict[str, type[Request]] = {r.operation: r for r in REQUESTS}


def schema_of(request: type[Request]) -> dict[str, Any]:
    """The JSON schema of a request's arguments, without titles: what a model is given as ``parameters``."""
    schema: dict[str, Any] = _without_titles(request.model_json_schema())
    schema.pop("description", None)
    schema["properties"].pop("request_id", None)  # for callers in Python; a model does not lose its connection
    schema.setdefault("required", [])
    return schema


def _without_titles(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_titles(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(v) for v in node] if isinstance(node, list) else node
