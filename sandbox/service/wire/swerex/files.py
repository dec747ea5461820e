"""Files of SWE-ReX: text in JSON, and uploads in a form, where folders come as a zip."""

from __future__ import annotations

import asyncio
import io
import tarfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator
from email.message import Message
from typing import Any, Literal

from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Failure
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass
from sandbox.operations import HostArguments
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.http.problems import Problem, ProblemCode

from .models import ReadFile, SwerexError, WriteFile, error_of

MOST_READ_BYTES = 16 << 20
MOST_AS_USER_BYTES = 256 << 20
MOST_MEMBERS = 100_000
PIECE_BYTES = 64 << 10
# What file tools do not write is written by a command of the same user, where its own rights allow it.
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"'
_UNPACK = 'mkdir -p -- "$1" && exec tar -x -C "$1"'


async def read(live: LiveSandbox, asked: ReadFile) -> dict[str, Any]:
    """Return a file as text. Raises SwerexError."""
    environment = await live.ready()
    known = await environment.stat(asked.path)
    if isinstance(known, Failure):
        raise error_of(known)
    found = known.unwrap()
    if found.type != "file":
        raise SwerexError(f"{asked.path!r} is not a file", "IsADirectoryError" if found.type == "directory" else "OSError")
    if (found.size_bytes or 0) > MOST_READ_BYTES:
        raise SwerexError(f"{asked.path!r} is larger than {MOST_READ_BYTES} bytes", "OSError")
    answer = await environment.download(asked.path)
    if isinstance(answer, Failure):
        raise error_of(answer)
    try:
        text = (answer.unwrap().content or b"").decode(asked.encoding or "utf-8", asked.errors or "strict")
    except UnicodeDecodeError as error:
        raise SwerexError(f"{asked.path!r}: {error}", "ValueError") from error
    return {"content": text}


async def write(live: LiveSandbox, asked: WriteFile) -> dict[str, Any]:
    """Write a text as a file. Raises SwerexError."""
    return await Upload(asked.content.encode("utf-8", "surrogateescape"), asked.path).carry_out(live)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file for a path of the sandbox; with ``unzip``, a zip for a folder."""

    data: bytes
    path: str
    unzip: bool = False

    @classmethod
    def of_form(cls, content_type: str, body: bytes) -> Upload:
        """Return what a form asks for. Raises Problem."""
        fields = dict(_parts(content_type, body))
        path = fields.get("target_path", b"").decode(errors="replace")
        if "file" not in fields or not 0 < len(path) <= 4096:
            raise _invalid("The form needs file, and a target_path of 1 to 4096 characters.")
        return cls(fields["file"], path, fields.get("unzip", b"").lower() in (b"true", b"1"))

    async def carry_out(self, live: LiveSandbox) -> dict[str, Any]:
        """Write it. Raises SwerexError."""
        environment = await live.ready()
        inner = environment.environment
        assert isinstance(inner, SandboxedEnvironment)  # noqa: S101  # the fleet makes no other
        kind: Literal["file", "tree"] = "tree" if self.unzip else "file"
        answer = await inner.upload_awaited(kind, self._pieces(), self.path)
        if isinstance(answer, Failure) and answer.code is ErrorCode.path_outside_roots:
            await self._write_as_user(environment)
        elif isinstance(answer, Failure):
            raise error_of(answer)
        return {}

    async def _write_as_user(self, environment: AsyncEnvironment) -> None:
        data = bytearray()
        async for piece in self._pieces():
            data += piece
            if len(data) > MOST_AS_USER_BYTES:
                raise SwerexError(f"More than {MOST_AS_USER_BYTES} bytes can be unpacked in the workspace or /tmp only.", "OSError")
        script = _UNPACK if self.unzip else _WRITE
        args = HostArguments(argv=["/bin/sh", "-c", script, "sh", self.path], stdin=bytes(data), session=None, cwd="/")
        answer = await environment.execute("run", args)
        if isinstance(answer, Failure):
            raise error_of(answer)
        result = answer.unwrap()
        if result.exit_code != 0:
            kind = "IsADirectoryError" if "directory" in result.stderr.lower() else "PermissionError"
            raise SwerexError(f"{self.path!r}: {result.stderr.strip()[:1000]}", kind)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if not self.unzip:
            for at in range(0, len(self.data), PIECE_BYTES):
                yield self.data[at : at + PIECE_BYTES]
            return
        pieces = _tar_of_zip(self.data)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


def _tar_of_zip(data: bytes) -> Iterator[bytes]:
    """Yield the members of a zip as a tar, which the sandbox unpacks and judges; nothing is unpacked here. Raises SwerexError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            members = source.infolist()
            if len(members) > MOST_MEMBERS:
                raise SwerexError(f"The zip has more than {MOST_MEMBERS} members.", "ValueError")
            for member in members:
                info = tarfile.TarInfo(member.filename.rstrip("/"))
                info.mode = (member.external_attr >> 16) & 0o777 or (0o755 if member.is_dir() else 0o644)
                info.type = tarfile.DIRTYPE if member.is_dir() else tarfile.REGTYPE
                info.size = 0 if member.is_dir() else member.file_size
                yield info.tobuf()
                left = info.size
                with source.open(member) as content:
                    while left and (piece := content.read(min(left, PIECE_BYTES))):
                        left -= len(piece)
                        yield piece
                if left:
                    raise SwerexError(f"The zip is damaged at {member.filename[:200]!r}.", "ValueError")
                yield bytes(-info.size % tarfile.BLOCKSIZE)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise SwerexError(f"The zip cannot be read: {str(error)[:200]}", "ValueError") from error
    yield bytes(2 * tarfile.BLOCKSIZE)


def _parts(content_type: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the fields of a form (multipart/form-data), at most 8 of them. Raises Problem."""
    head = Message()
    head["content-type"] = content_type[:1000]
    boundary = head.get_boundary("")
    if head.get_content_type() != "multipart/form-data" or not 0 < len(boundary) <= 70:
        raise _invalid("The body is not multipart/form-data with a boundary.")
    delimiter = f"\r\n--{boundary}".encode()
    for part in (b"\r\n" + body).split(delimiter, 9)[1:]:
        if part.startswith(b"--"):
            return
        fields, found, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not found or len(fields) > 4096:
            raise _invalid("A part of the form has no head.")
        lines = (line.partition(":") for line in fields.decode("utf-8", "replace").split("\r\n"))
        kind = Message()
        kind["content-disposition"] = next((text.strip() for name, _, text in lines if name.lower() == "content-disposition"), "")
        yield str(kind.get_param("name", "", "content-disposition")), data


def _invalid(detail: str) -> Problem:
    return Problem(422, ProblemCode.invalid_body, detail, "Send the form that the client of SWE-ReX sends.")
