"""Files and folders over HTTP, streamed both ways."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import httpx

from sandbox.errors import ErrorCode, OperationError
from sandbox.state.checkpoint_file import open_file

from .http.service import Call, Service, nonsense

PIECE_BYTES = 256 << 10
# A chunk of a download is no longer than this.
MOST_CHUNK_BYTES = 16 << 20
CHUNKS = "application/vnd.gamebox.chunks"
# A service may take this long to have all of a folder written.
WRITTEN_SECONDS = 300.0


def upload(
    service: Service,
    sandbox_path: str,
    kind: str,
    params: dict[str, str],
    body: Callable[[], Iterable[bytes]],
    headers: dict[str, str],
    size: int | None = None,
) -> Any:
    """Send a file, or the tar of a folder (``kind`` "tree"), and return the envelope's data. Raises SandboxError.

    A body of a known ``size`` in bytes takes both ends less work.
    """
    place = "trees" if kind == "tree" else "files"
    headers = {"Content-Type": "application/x-tar" if kind == "tree" else "application/octet-stream", **headers}
    headers |= {} if size is None else {"Content-Length": str(size)}
    call = Call(
        "PUT",
        f"{sandbox_path}/{place}",
        content=lambda: _cut(body()),
        params=params,
        headers=headers,
        read_seconds=WRITTEN_SECONDS,
        repeatable=True,
    )
    return service.json(call)


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes in pieces that a socket takes: of a longer one, the rest is copied each time that a part was taken."""
    for piece in pieces:
        view = memoryview(piece)
        yield from (bytes(view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES))


def fetch(service: Service, path: str, params: dict[str, str], file: BinaryIO) -> int:
    """Write what is at ``path`` to ``file``, from its beginning after each cut; return its size. Raises SandboxError, OSError."""
    call = Call("GET", path, params=params, read_seconds=WRITTEN_SECONDS, repeatable=True)
    attempts = service.attempts(call)
    while True:
        file.seek(0)
        file.truncate()
        try:
            with service.stream(call) as response:
                file.writelines(response.iter_raw())
            file.flush()  # a full disk is reported here
            return file.tell()
        except httpx.TransportError as error:
            service.check_open(error)
            time.sleep(attempts.seconds_after(error))


def send(
    service: Service, path: str, params: dict[str, str], source: str | os.PathLike[str], headers: dict[str, str]
) -> Any:
    """Send the file ``source`` to ``path``, and return the data of the answer. Raises SandboxError, OSError."""

    def content() -> Iterator[bytes]:
        with open_file(source) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    headers = {"Content-Type": "application/x-tar", **headers}
    call = Call("PUT", path, content=content, params=params, headers=headers, read_seconds=WRITTEN_SECONDS)
    return service.json(replace(call, repeatable=True))


def download(
    service: Service, sandbox_path: str, args: dict[str, Any], headers: dict[str, str], sink: Callable[[bytes], None]
) -> Any:
    """Pass a file, or the tar of a folder, to ``sink``, and return the envelope's data. Raises SandboxError."""
    body = json.dumps(args).encode()
    call = Call(
        "POST",
        f"{sandbox_path}/download",
        body,
        headers={"Accept": CHUNKS, **headers},
        read_seconds=WRITTEN_SECONDS,
        repeatable=True,  # as long as nothing has come: ``sink`` takes each byte once
    )
    try:
        with service.stream(call) as response:
            if not response.headers.get("Content-Type", "").startswith(CHUNKS):
                return json.loads(response.read())
            return json.loads(b"".join(pass_chunks(response.iter_raw(), sink)))
    except httpx.TransportError as error:
        service.check_open(error)
        raise OperationError(
            ErrorCode.transfer_incomplete,
            f"The download was cut off ({type(error).__name__}).",
            "Download it again.",
            retryable=True,
        ) from error
    except ValueError as error:
        raise nonsense(service, "download") from error


def pass_chunks(stream: Iterable[bytes], sink: Callable[[bytes], None]) -> Iterator[bytes]:
    """Pass the bytes of the chunks to ``sink``, and yield what follows the last one.

    Raises ValueError for a stream that is cut off.
    """
    left, head, ended = 0, b"", False
    for data in stream:
        view = data
        while view and not ended:
            if left:
                sink(view[:left])
                done = min(left, len(view))
                left, view = left - done, view[done:]
                continue
            need = 4 - len(head)
            head, view = head + view[:need], view[need:]
            if len(head) == 4:
                left, head = int.from_bytes(head, "big"), b""
                ended = left == 0
                if left > MOST_CHUNK_BYTES:
                    raise ValueError("a chunk is too long")
        if ended and view:
            yield view
    if not ended:
        raise ValueError("the chunks do not end")
