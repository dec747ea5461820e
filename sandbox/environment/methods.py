"""The operations as methods: typed doors to ``execute``, the same on every environment."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Literal, TypedDict, Unpack, cast

from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.errors import SandboxError
from sandbox.network.ports import check_port
from sandbox.operations import OPERATIONS, HostArguments
from sandbox.pipe.following import CommandOutput, Following
from sandbox.pipe.stdin import Stdin, is_source
from sandbox.pipe.watching import CancelToken, OnOutput, Watch

from .call_errors import check_call, check_cancel, raise_if_closed
from .sessions import Session


class RunOptions(TypedDict, total=False):
    """The options of ``OperationMethods.run``, for methods that hand them on."""

    argv: Sequence[str] | None
    cwd: str | None
    env: Mapping[str, str] | None
    secrets: Sequence[str] | None
    stdin: Stdin | None
    timeout_seconds: float | Literal["unlimited"] | None
    cpu_seconds: float | None
    background: bool
    session: str | None
    keep_output_bytes: int | None
    wait_seconds: float | None
    pty: bool
    rows: int
    cols: int
    request_id: str | None
    user: str | int | None
    needs_session: bool
    on_output: OnOutput | None
    cancel: CancelToken | None


class OperationMethods(ABC):
    """Every method answers with an envelope and raises nothing for what a command or a path can do wrong.

    What only the calling program can have done wrong is raised: TypeError for an argument of a wrong type or an unknown option,
    SandboxError ``sandbox_closed`` for a sandbox that was not started or is closed. ``execute`` answers with failures instead.
    """

    @abstractmethod
    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """Carry out the operation of that name; arguments are validated first (failure ``invalid_arguments``)."""

    def _carried_out(self, operation: str, args: Mapping[str, Any], watch: Watch | None = None) -> Envelope[Any]:
        """What ``execute`` answers. Raises TypeError for a wrong call, SandboxError ``sandbox_closed``."""
        check_call(OPERATIONS[operation], args)
        answer = self.execute(operation, HostArguments(args), watch=watch)
        raise_if_closed(answer)
        return answer

    @abstractmethod
    def upload(self, data_or_path: bytes | str | os.PathLike[str], path: str) -> Envelope[op.UploadResult]:
        """Copy bytes, or a file or folder of the host, to ``path`` in the sandbox. A str is a host path."""

    @abstractmethod
    def download(
        self, path: str, to: str | os.PathLike[str] | None = None, *, without: Sequence[str] = (), overwrite: bool = False
    ) -> Envelope[op.DownloadResult]:
        """Copy a file or folder out of the sandbox, to host path ``to`` or, for a file, into ``result.content``.

        ``to`` must not exist, or with ``overwrite`` must be a file that a file replaces, in one step: a folder of the host is never
        replaced. Links, devices and names that would leave ``to`` are skipped and named in ``skipped``. Files and folders whose
        name is in ``without``, at any depth, are left out and not named.
        """

    def read(self, path: str, **options: Any) -> Envelope[op.ReadResult]:
        """Options: ``start_line``, ``end_line``, ``offset``, ``max_bytes``, ``numbered``; see ``operations.Read``."""
        return cast("Envelope[op.ReadResult]", self._carried_out("read", {"path": path, **options}))

    def write(self, path: str, content: str, *, request_id: str | None = None) -> Envelope[op.WriteResult]:
        """Replace the whole file atomically; makes parent folders and keeps the mode. For ``request_id`` see ``run``."""
        args = {"path": path, "content": content, "request_id": request_id}
        return cast("Envelope[op.WriteResult]", self._carried_out("write", args))

    def edit(
        self, path: str, old_text: str, new_text: str, *, replace_all: bool = False, request_id: str | None = None
    ) -> Envelope[op.EditResult]:
        """Replace one exact piece of text; failures ``text_not_found`` and ``text_not_unique`` show candidates."""
        args = {
            "path": path, "old_text": old_text, "new_text": new_text, "replace_all": replace_all, "request_id": request_id,
        }  # fmt: skip
        return cast("Envelope[op.EditResult]", self._carried_out("edit", args))

    def stat(self, path: str) -> Envelope[op.StatResult]:
        """Say what ``path`` is, following links: type, size, mode, owner, time of the last change; see ``StatResult``."""
        return cast("Envelope[op.StatResult]", self._carried_out("stat", {"path": path}))

    def list(self, path: str = ".", **options: Any) -> Envelope[op.ListResult]:
        """Options: ``depth``, ``hidden``, ``max_entries``; see ``operations.List``."""
        return cast("Envelope[op.ListResult]", self._carried_out("list", {"path": path, **options}))

    def search(self, pattern: str, path: str = ".", **options: Any) -> Envelope[op.SearchResult]:
        """Options: ``glob``, ``literal``, ``ignore_case``, ``context_lines``, ``max_matches``."""
        return cast("Envelope[op.SearchResult]", self._carried_out("search", {"pattern": pattern, "path": path, **options}))

    def make_dir(self, path: str, *, request_id: str | None = None) -> Envelope[op.MakeDirResult]:
        """Make a folder and its parents."""
        return cast("Envelope[op.MakeDirResult]", self._carried_out("make_dir", {"path": path, "request_id": request_id}))

    def move(
        self, source: str, target: str, *, overwrite: bool = False, request_id: str | None = None
    ) -> Envelope[op.MoveResult]:
        """Move or rename; an existing target is ``path_exists`` unless ``overwrite``."""
        args = {"source": source, "target": target, "overwrite": overwrite, "request_id": request_id}
        return cast("Envelope[op.MoveResult]", self._carried_out("move", args))

    def delete(
        self, path: str, *, recursive: bool = False, request_id: str | None = None
    ) -> Envelope[op.DeleteResult]:
        """Delete a file, or a folder with ``recursive``."""
        args = {"path": path, "recursive": recursive, "request_id": request_id}
        return cast("Envelope[op.DeleteResult]", self._carried_out("delete", args))

    def run(
        self,
        command: str | Sequence[str] | None = None,
        *,
        argv: Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] | None = None,
        stdin: Stdin | None = None,
        timeout_seconds: float | Literal["unlimited"] | None = None,
        cpu_seconds: float | None = None,
        background: bool = False,
        session: str | None = "default",
        keep_output_bytes: int | None = None,
        wait_seconds: float | None = None,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
        user: str | int | None = None,
        needs_session: bool = False,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        cancel: CancelToken | None = None,
    ) -> Envelope[op.RunResult]:
        """Run shell text, or a program with its arguments, without a shell: a list, or ``argv``.

        See ``operations.Run`` and ``operations.RunResult`` for what is promised.
        ``on_output("stdout" | "stderr", text)`` is called in this thread as output comes; a command that prints faster waits for
        it; what it raises stops the command and is raised here. ``cancel`` stops the command from another thread: the answer is
        the failure ``cancelled`` with the output so far. A ``request_id`` of the caller's choice makes it safe to ask again: of
        requests with the same one only the first is carried out, and all get its answer, as long as it is among the last 64.
        ``stdin`` is text, bytes, a binary file or an iterable of bytes, of any size. The last two, and more than 8 MiB, are
        streamed as the command reads. A source is read in a thread of its own; its exception stops the command and is raised here.
        With ``timeout_seconds=math.inf`` (or "unlimited") the command may run until the sandbox's ``lifetime_seconds`` are over,
        which must be set. ``needs_session`` fails with ``session_not_found`` instead of making the session. ``user`` is the name or
        number of another user of the image, where the profile allows it; each user has sessions of its own.
        """
        if command is not None and not isinstance(command, str):
            if argv is not None:
                raise TypeError("run() takes one of command and argv, not both.")
            command, argv = None, command
        if isinstance(stdin, bytearray | memoryview):
            stdin = bytes(stdin)
        source = stdin if is_source(stdin) else None
        args = {
            "command": command, "argv": argv, "cwd": cwd, "env": env, "secrets": secrets, "background": background,
            "stdin": stdin if source is None else None,
            "timeout_seconds": "unlimited" if timeout_seconds == math.inf else timeout_seconds,
            "cpu_seconds": cpu_seconds, "session": session, "request_id": request_id,
            "keep_output_bytes": keep_output_bytes, "wait_seconds": wait_seconds, "pty": pty, "rows": rows, "cols": cols,
            "user": user, "needs_session": needs_session,
        }  # fmt: skip
        check_cancel("run", cancel)
        if on_output is not None and not callable(on_output):
            raise TypeError(f"run(): on_output must be a function or None, not {type(on_output).__name__}.")
        watch = None
        if on_output is not None or cancel is not None or source is not None:
            watch = Watch(on_output=on_output, cancel=cancel, stdin=cast("BinaryIO | Iterable[bytes] | None", source))
        return cast("Envelope[op.RunResult]", self._carried_out("run", args, watch=watch))

    def sh(
        self, command: str | Sequence[str], *, check: bool = False, **options: Unpack[RunOptions]
    ) -> op.RunResult:
        """Run a command as ``run`` does, and return its result without an envelope: ``env.sh("make").stdout``.

        Raises SandboxError where the command could not be run or did not end in time; with ``check`` CommandError, a
        ``subprocess.CalledProcessError``, if it ended with another exit code than 0 or by a signal.
        """
        result = self.run(command, **options).unwrap()
        return checked(command, result) if check else result

    def stream(self, command: str | None = None, **options: Unpack[RunOptions]) -> CommandOutput:
        """Run a command and iterate over its output as it comes: ``for chunk in env.stream("make"):``; options as for ``run``.

        A chunk has ``stream`` ("stdout" or "stderr") and ``text``. The answer is in ``envelope`` afterwards.
        """
        return CommandOutput(self.run, command, dict(options))

    def logs(self, id: str, *, cancel: CancelToken | None = None, **options: Any) -> Envelope[op.LogsResult]:  # noqa: A002
        """Options: ``offset``, ``max_bytes``, ``tail_lines``, ``follow``, ``wait_seconds``; see ``operations.Logs``.

        ``cancel`` ends a wait from another thread: the answer is the failure ``cancelled``.
        """
        return cast("Envelope[op.LogsResult]", self._carried_out("logs", {"id": id, **options}, watch=_stopped_by("logs", cancel)))

    def follow(self, id: str, *, offset: int = 0, cancel: CancelToken | None = None) -> Following:  # noqa: A002
        """The output of a command from ``offset`` on, as it comes, until it has ended: iterate over OutputChunks.

        Any number of callers may follow the same command. Iterating raises SandboxError for what ``logs`` would answer as a
        failure. ``ended`` of what this answers is the last state of the command.
        """
        return Following(self.logs, id, offset, cancel)

    def kill(
        self, id: str, signal: str | None = None, *, user: str | int | None = None  # noqa: A002
    ) -> Envelope[op.KillResult]:
        """Kill a command and all it started; with ``signal`` ("SIGINT"), send all its processes that instead.

        A command that was run with ``user`` needs the same ``user`` here, so that a model's tools cannot reach it.
        """
        return cast("Envelope[op.KillResult]", self._carried_out("kill", {"id": id, "signal": signal, "user": user}))

    def wait_for(self, *, cancel: CancelToken | None = None, **options: Any) -> Envelope[op.WaitForResult]:
        """Wait for exactly one of ``port``, ``log``, ``file``, ``exit``; options as in ``operations.WaitFor``.

        Failures ``not_ready`` and ``command_ended`` have the last output in their result. ``cancel`` ends the wait from another
        thread: the answer is the failure ``cancelled``.
        """
        return cast("Envelope[op.WaitForResult]", self._carried_out("wait_for", options, watch=_stopped_by("wait_for", cancel)))

    def wait_for_port(
        self, port: int, *, timeout_seconds: float = 30.0, cancel: CancelToken | None = None, **options: Any
    ) -> Envelope[op.WaitForResult]:
        """Wait until something listens at TCP ``port`` in the sandbox: ``wait_for(port=)``; options ``id``, ``host``."""
        try:
            check_port("wait_for_port", "port", port)
        except SandboxError as error:
            return Failure.of(error)
        return self.wait_for(port=port, timeout_seconds=timeout_seconds, cancel=cancel, **options)

    def processes(self, id: str | None = None) -> Envelope[op.ProcessesResult]:  # noqa: A002
        """The commands of the sandbox with their processes, or one of them."""
        return cast("Envelope[op.ProcessesResult]", self._carried_out("processes", {"id": id}))

    def session(self, name: str, *, user: str | int | None = None) -> Session:
        """Return a session of that name to open, run commands in and close: ``with env.session("build") as session:``."""
        return Session(self, name, user)

    def open_session(self, session: str, *, user: str | int | None = None) -> Envelope[op.OpenSessionResult]:
        """Make a session of ``run``; failure ``session_exists`` if it is there already."""
        return cast("Envelope[op.OpenSessionResult]", self._carried_out("open_session", {"session": session, "user": user}))

    def sessions(self, *, user: str | int | None = None) -> Envelope[op.SessionsResult]:
        """List the sessions that ``run`` and ``open_session`` have made, and ``end_session`` has not ended."""
        return cast("Envelope[op.SessionsResult]", self._carried_out("sessions", {"user": user}))

    def end_session(self, session: str, *, user: str | int | None = None) -> Envelope[op.EndSessionResult]:
        """Forget a session of ``run``; with ``user``, the session of that name which that user has."""
        return cast("Envelope[op.EndSessionResult]", self._carried_out("end_session", {"session": session, "user": user}))

    def send(
        self,
        id: str,  # noqa: A002
        text: str = "",
        *,
        keys: Sequence[str] = (),
        eof: bool = False,
        wait_seconds: float = 0.5,
        user: str | int | None = None,
    ) -> Envelope[op.SendResult]:
        """Type into a running command and wait for its answer; see ``operations.Send``, and ``kill`` for ``user``."""
        args = {"id": id, "text": text, "keys": keys, "eof": eof, "wait_seconds": wait_seconds, "user": user}
        return cast("Envelope[op.SendResult]", self._carried_out("send", args))

    def resize(
        self, id: str, rows: int, cols: int, *, user: str | int | None = None  # noqa: A002
    ) -> Envelope[op.ResizeResult]:
        """Give the terminal of a running command another size; see ``kill`` for ``user``."""
        args = {"id": id, "rows": rows, "cols": cols, "user": user}
        return cast("Envelope[op.ResizeResult]", self._carried_out("resize", args))

    def screen(self, id: str) -> Envelope[op.ScreenResult]:  # noqa: A002
        """The screen of a command with a terminal as a person would see it."""
        return cast("Envelope[op.ScreenResult]", self._carried_out("screen", {"id": id}))

    def usage(self) -> Envelope[op.UsageResult]:
        """What is used of the sandbox, and what is left; asking does not count as work (see Limits.idle_seconds)."""
        return cast("Envelope[op.UsageResult]", self._carried_out("usage", {}))

    def browse(self, url: str, **options: Any) -> Envelope[op.BrowseResult]:
        """Options: ``offset``, ``max_chars``, ``raw``, ``timeout_seconds``; see ``operations.Browse``."""
        return cast("Envelope[op.BrowseResult]", self._carried_out("browse", {"url": url, **options}))


def checked(command: str | Sequence[str], result: op.RunResult) -> op.RunResult:
    """``result``. Raises CommandError if the command ended with another exit code than 0, or by a signal."""
    if result.signal is None and result.exit_code in (0, None):
        return result
    from .command_error import CommandError  # imports subprocess

    raise CommandError(command, result)


def _stopped_by(call: str, cancel: CancelToken | None) -> Watch | None:
    check_cancel(call, cancel)
    return None if cancel is None else Watch(cancel=cancel)
