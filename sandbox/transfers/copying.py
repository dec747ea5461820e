"""Read and write the host's side of uploads and downloads."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Self

from sandbox.argument_types import check_host_path
from sandbox.errors import ErrorCode, OperationError
from sandbox.readers import limit, phrased

from . import folders
from .archives import file_chunks, tree_chunks, unpack

if TYPE_CHECKING:
    from sandbox.operations import DownloadResult

CHUNK = 256 * 1024
_SMALLER = phrased("Copy a part of it, or raise {limit}.", limit=limit("transfer_bytes"))


def outgoing(
    data_or_path: bytes | str | os.PathLike[str], limit: int
) -> tuple[Literal["file", "tree"], int | None, Iterable[bytes]]:
    """Return kind, mode and bytes of what is uploaded. Raises OperationError for a host path that cannot be read."""
    if isinstance(data_or_path, bytes | bytearray | memoryview):
        if len(data_or_path) > limit:
            raise OperationError(
                ErrorCode.file_too_large,
                f"{len(data_or_path)} bytes are more than the transfer limit of {limit}.",
                _SMALLER,
            )
        return "file", None, (bytes(data_or_path),)
    check_host_path(data_or_path)
    source = Path(data_or_path)
    if source.is_dir():
        return "tree", None, tree_chunks(source, limit)
    if not source.exists():
        raise OperationError(
            ErrorCode.path_not_found, f"There is no {source} on the host.", "Give a file or folder that exists."
        )
    if not source.is_file():
        raise OperationError(
            ErrorCode.not_a_regular_file, f"{source} on the host is not a regular file.", "Give a file or folder."
        )
    if not os.access(source, os.R_OK):
        raise OperationError(
            ErrorCode.permission_denied, f"{source} on the host cannot be read.", "Give a readable file."
        )
    return "file", source.stat().st_mode & 0o777, file_chunks(source, limit)


def bounded(pieces: Iterable[bytes], limit: int) -> Iterable[bytes]:
    """Yield the pieces. Raises OperationError ``file_too_large`` past ``limit`` bytes."""
    sent = 0
    for piece in pieces:
        sent += len(piece)
        if sent > limit:
            raise too_large(limit)
        yield piece


def too_large(limit: int) -> OperationError:
    """Return the error of an upload of more than ``limit`` bytes."""
    words = f"The upload is larger than the transfer limit of {limit} bytes."
    return OperationError(ErrorCode.file_too_large, words, _SMALLER)


class Incoming:
    """Takes the stream of a download: into memory, or into a folder beside the host path ``to`` until it is complete.

    Raises OperationError ``path_exists`` if ``to`` exists, except for a file with ``overwrite``. Removes what it has of a download
    that failed.
    """

    def __init__(self, to: str | os.PathLike[str] | None, limit: int, *, overwrite: bool = False) -> None:
        if to is not None:
            check_host_path(to)
        self._overwrite = overwrite
        self._limit = limit
        self._size = 0
        self._to = None if to is None else Path(os.path.abspath(to))
        self._folder: Path | None = None
        self._file: BinaryIO | None = None
        self._memory = io.BytesIO()  # its bytes are not copied at the end, as joined pieces would be

    def __enter__(self) -> Self:
        if self._to is not None:
            if os.path.lexists(self._to) and (not self._overwrite or self._is_folder()):
                raise OperationError(
                    ErrorCode.path_exists,
                    f"{self._to} exists on the host.",
                    "Give a path that does not exist yet, or overwrite=True for a file.",
                )
            try:
                self._folder = Path(tempfile.mkdtemp(prefix=".gamebox-", dir=self._to.parent))
                self._file = (self._folder / "stream").open("w+b")
            except OSError as error:
                raise OperationError(
                    ErrorCode.io_error,
                    f"{self._to.parent} on the host cannot be written: {error.strerror}.",
                    "Give another path.",
                ) from error
        return self

    def _is_folder(self) -> bool:
        return self._to is not None and self._to.is_dir() and not self._to.is_symlink()

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._folder is not None:
            folders.remove(self._folder)

    def take(self, chunk: bytes | memoryview) -> None:
        """Take the next piece of the stream."""
        self._size += len(chunk)
        # A tar is larger than its files: it has a block for each entry.
        if self._size > self._limit * 2 + (64 << 20):
            raise OperationError(
                ErrorCode.file_too_large, f"The download is larger than the limit of {self._limit} bytes.", _SMALLER
            )
        if self._file is None:
            self._memory.write(chunk)
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            raise OperationError(
                ErrorCode.host_disk_full,
                f"The host could not store the download: {error.strerror}.",
                "Free space there.",
            ) from error

    def finish(self, result: DownloadResult) -> DownloadResult:
        """Return the result with ``content``, or move the download to its path in one step."""
        if self._to is None or self._file is None or self._folder is None:
            if result.kind == "tree":
                raise OperationError(
                    ErrorCode.is_a_directory,
                    f"{result.path[:500]!r} is a folder.",
                    "Give a host path to put it: download(path, to=...).",
                )
            return result.model_copy(update={"content": self._memory.getvalue(), "size_bytes": self._size})
        update: dict[str, object] = {"saved_to": str(self._to)}
        ready = self._folder / "stream"
        if result.kind == "tree":
            self._file.seek(0)
            ready = self._folder / "tree"
            files, size, skipped = unpack(self._file, ready, self._limit)
            if files != result.files:  # a tar that was cut between two entries is a valid, shorter tar
                message = f"The archive held {files} of {result.files} files."
                raise OperationError(ErrorCode.transfer_incomplete, message, "Download it again.", retryable=True)
            update.update(files=files, size_bytes=size, skipped=(*result.skipped, *skipped))
        else:
            self._file.flush()
            update["size_bytes"] = self._size
        if result.kind == "tree" and os.path.lexists(self._to):
            message = f"{result.path[:500]!r} is a folder, and {self._to} is a file on the host."
            raise OperationError(
                ErrorCode.path_exists, message, "Delete the file, or give a path that does not exist yet."
            )
        os.rename(ready, self._to)
        return result.model_copy(update=update)
