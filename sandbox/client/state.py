"""The methods of a remote environment on the state of its files."""

from __future__ import annotations

import errno
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from sandbox import operations as op
from sandbox.argument_types import HOST_PATH, check_host_path, check_types
from sandbox.envelope import Envelope, Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations.wire import STATE_METHODS
from sandbox.state.checkpoint_file import open_file
from sandbox.state.methods import MOST_CHANGES, StateMethods, write_new


class RemoteState(StateMethods):
    """Asks the service for what the methods answer."""

    @abstractmethod
    def _ask_for_state(self, method: str, args: Mapping[str, Any], kind: type[Any]) -> Envelope[Any]:
        """Send the arguments of a method and return its answer. Raises SandboxError."""

    @abstractmethod
    def _fetch_checkpoint(self, id: str, file: BinaryIO) -> int:  # noqa: A002
        """Write a checkpoint to ``file`` and return its size. Raises SandboxError, OSError."""

    @abstractmethod
    def _send_checkpoint(self, path: str | os.PathLike[str], name: str | None) -> Envelope[op.CheckpointResult]:
        """Send the file of a checkpoint, and return the answer. Raises SandboxError, OSError."""

    def _state(self, method: str, **args: Any) -> Envelope[Any]:
        given = {name: value for name, value in args.items() if value is not None}
        return self._answered_state(lambda: self._ask_for_state(method, given, STATE_METHODS[method]))

    def _answered_state(self, work: Callable[[], Envelope[Any]]) -> Envelope[Any]:
        started = time.monotonic()
        try:
            return work()
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        except OSError as error:  # of the host's files
            message = f"{error.filename or 'A file'} on the host could not be read or written: {error.strerror or error}."
            code = ErrorCode.host_disk_full if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.io_error
            return Failure(code, message, "Give another path, or free space there.")

    def changes(
        self, since: str | None = None, *, leftovers: bool = False, max_changes: int = MOST_CHANGES
    ) -> Envelope[op.ChangesResult]:
        """See ``StateMethods.changes``."""
        check_types("changes", since=(since, str | None), max_changes=(max_changes, int))
        return self._state("changes", since=since, leftovers=leftovers, max_changes=max_changes)

    def mark(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.mark``."""
        check_types("mark", name=(name, str | None))
        return self._state("mark", name=name)

    def checkpoint(self, name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.checkpoint``; the service keeps it."""
        check_types("checkpoint", name=(name, str | None))
        return self._state("checkpoint", name=name)

    def checkpoints(self) -> Envelope[op.CheckpointsResult]:
        """See ``StateMethods.checkpoints``."""
        return self._state("checkpoints")

    def delete_checkpoint(self, id: str) -> Envelope[op.DeletedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.delete_checkpoint``."""
        check_types("delete_checkpoint", id=(id, str))
        return self._state("delete_checkpoint", id=id)

    def rollback(self, id: str, *, kill: bool = False) -> Envelope[op.RollbackResult]:  # noqa: A002
        """See ``StateMethods.rollback``."""
        check_types("rollback", id=(id, str), kill=(kill, bool))
        return self._state("rollback", id=id, kill=kill)

    def save_checkpoint(self, id: str, to: str | os.PathLike[str]) -> Envelope[op.SavedCheckpointResult]:  # noqa: A002
        """See ``StateMethods.save_checkpoint``; ``to`` is on this host."""
        check_types("save_checkpoint", id=(id, str), to=(to, HOST_PATH))

        def work() -> Envelope[op.SavedCheckpointResult]:
            check_host_path(to)
            with Path(to).open("xb") as file:
                try:
                    size = self._fetch_checkpoint(id, file)
                except BaseException:
                    Path(to).unlink()
                    raise
            return Success(op.SavedCheckpointResult(id=id, path=os.fspath(to), size_bytes=size))

        return self._answered_state(work)

    def load_checkpoint(self, path: str | os.PathLike[str], name: str | None = None) -> Envelope[op.CheckpointResult]:
        """See ``StateMethods.load_checkpoint``; ``path`` is on this host, and the service keeps the checkpoint."""
        check_types("load_checkpoint", path=(path, HOST_PATH), name=(name, str | None))

        def work() -> Envelope[op.CheckpointResult]:
            check_host_path(path)
            open_file(path).close()  # what is no file is not sent
            return self._send_checkpoint(path, name)

        return self._answered_state(work)

    def export_patch(
        self, since: str | None = None, *, to: str | os.PathLike[str] | None = None, leftovers: bool = False
    ) -> Envelope[op.PatchResult]:
        """See ``StateMethods.export_patch``."""
        check_types("export_patch", since=(since, str | None), to=(to, HOST_PATH | None))
        try:
            if to is not None:
                check_host_path(to)
            answer: Envelope[op.PatchResult] = self._state("export_patch", since=since, leftovers=leftovers)
            if to is not None and answer.ok:
                write_new(to, answer.result.patch)
        except SandboxError as error:
            if error.code is ErrorCode.sandbox_closed:
                raise
            return Failure.of(error)
        except OSError as error:
            message = f"{os.fspath(to or '')} on the host could not be written: {error.strerror or error}."
            return Failure(ErrorCode.io_error, message, "Give another path, or free space there.")
        return answer
