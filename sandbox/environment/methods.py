"""The operations as methods, the same on every environment, and what is made of them: ``sh``, ``stream``, ``follow`` and more.

Those that take nothing but the arguments of an operation are generated from the table, see ``generate``.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Unpack, cast

from sandbox import operations as op
from sandbox.argument_types import UNLIMITED
from sandbox.envelope import Envelope, Failure
from sandbox.errors import SandboxError
from sandbox.network.ports import check_port
from sandbox.pipe.following import CommandOutput, Following
from sandbox.pipe.stdin import is_source
from sandbox.pipe.watching import CancelToken, OnOutput, Watch

from .call_errors import check_cancel
from .generated.methods import GeneratedMethods, RunOptions
from .sessions import Session

__all__ = ["OperationMethods", "RunOptions", "raise_if_failed"]


class OperationMethods(GeneratedMethods):
    """Every method answers with an envelope and raises nothing for what a command or a path can do wrong.

    What only the calling program can have done wrong is raised: TypeError for an argument of a wrong type or an unknown option,
    SandboxError ``sandbox_closed`` for a sandbox that was not started or is closed. ``execute`` answers with failures instead.
    """

    @abstractmethod
    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """Carry out the operation of that name; arguments are validated first (failure ``invalid_arguments``)."""

    def _call_operation(
        self, operation: str, args: Mapping[str, Any], cancel: CancelToken | None = None
    ) -> Envelope[Any]:
        check_cancel(operation, cancel)
        return self._carried_out(operation, args, None if cancel is None else Watch(cancel=cancel))

    def _run_command(
        self, args: dict[str, Any], on_output: OnOutput | None, cancel: CancelToken | None
    ) -> Envelope[op.RunResult]:
        return self._carried_out("run", args, prepare_run(args, on_output, cancel))

    @abstractmethod
    def _carried_out(self, operation: str, args: Mapping[str, Any], watch: Watch | None) -> Envelope[Any]:
        """Return what ``execute`` answers. Raises TypeError for a wrong call, SandboxError ``sandbox_closed``."""

    @abstractmethod
    def upload(self, data_or_path: bytes | str | os.PathLike[str], path: str) -> Envelope[op.UploadResult]:
        """Copy bytes, or a file or folder of the host, to ``path`` in the sandbox. A str is a host path."""

    @abstractmethod
    def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        """Copy a file or folder out of the sandbox, to host path ``to`` or, for a file, into ``result.content``.

        ``to`` must not exist, or with ``overwrite`` must be a file that a file replaces, in one step: a folder of the host is never
        replaced. Links, devices and names that would leave ``to`` are skipped and named in ``skipped``. Files and folders whose
        name is in ``without``, at any depth, are left out and not named.
        """

    def sh(self, command: str | Sequence[str], *, check: bool = False, **options: Unpack[RunOptions]) -> op.RunResult:
        """Run a command as ``run`` does, and return its result without an envelope: ``env.sh("make").stdout``.

        Raises SandboxError if the command could not be run or did not end in time. With ``check`` it raises CommandError, a
        ``subprocess.CalledProcessError``, if the command ended with an exit code other than 0 or by a signal.
        """
        result = self.run(command, **options).unwrap()
        return raise_if_failed(command, result) if check else result

    def stream(self, command: str | None = None, **options: Unpack[RunOptions]) -> CommandOutput:
        """Run a command and iterate over its output as it comes: ``for chunk in env.stream("make"):``; options as for ``run``.

        A chunk has ``stream`` ("stdout" or "stderr") and ``text``. The answer is in ``envelope`` afterwards.
        """
        return CommandOutput(self.run, command, dict(options))

    def follow(self, id: str, *, offset: int = 0, cancel: CancelToken | None = None) -> Following:  # noqa: A002
        """Iterate over the output of a command from ``offset`` on, as it comes, until the command has ended.

        It yields OutputChunks; ``ended`` of the iterator is the last state of the command. Any number of callers may follow the
        same command. Iterating raises SandboxError for what ``logs`` would answer as a failure.
        """
        return Following(self.logs, id, offset, cancel)

    def wait_for_port(
        self,
        port: int,
        *,
        timeout_seconds: float = 30.0,
        id: str | None = None,  # noqa: A002
        host: str | None = None,
        cancel: CancelToken | None = None,
    ) -> Envelope[op.WaitForResult]:
        """Wait until something listens at TCP ``port`` in the sandbox: ``wait_for(port=...)`` with the same options."""
        try:
            check_port("wait_for_port", "port", port)
        except SandboxError as error:
            return Failure.of(error)
        return self.wait_for(port=port, timeout_seconds=timeout_seconds, id=id, host=host, cancel=cancel)

    def session(self, name: str, *, user: str | int | None = None) -> Session:
        """Return a session of that name to open, run commands in and close: ``with env.session("build") as session:``."""
        return Session(self, name, user)


def raise_if_failed(command: str | Sequence[str], result: op.RunResult) -> op.RunResult:
    """Return ``result``, or raise CommandError if the command ended with an exit code other than 0 or by a signal."""
    if result.signal is None and result.exit_code in (0, None):
        return result
    from .command_error import CommandError  # imports subprocess

    raise CommandError(command, result)


def prepare_run(args: dict[str, Any], on_output: OnOutput | None, cancel: CancelToken | None) -> Watch | None:
    """Turn the arguments of ``run`` into those of its request, in place; return the watch. Raises TypeError for a wrong call."""
    command, stdin, timeout = args["command"], args["stdin"], args["timeout_seconds"]
    if command is not None and not isinstance(command, str):
        if args["argv"] is not None:
            raise TypeError("run() takes one of command and argv, not both.")
        args.update(command=None, argv=command)
    if isinstance(stdin, bytearray | memoryview):
        stdin = bytes(stdin)
    source = stdin if is_source(stdin) else None
    args["stdin"] = stdin if source is None else None
    args["timeout_seconds"] = UNLIMITED if timeout == math.inf else timeout
    check_cancel("run", cancel)
    if on_output is not None and not callable(on_output):
        raise TypeError(f"run(): on_output must be a function or None, not {type(on_output).__name__}.")
    watch = None
    if on_output is not None or cancel is not None or source is not None:
        watch = Watch(on_output=on_output, cancel=cancel, stdin=cast("BinaryIO | Iterable[bytes] | None", source))
    return watch
