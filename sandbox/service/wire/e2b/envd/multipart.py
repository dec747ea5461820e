"""The files of a form, one after the other, without holding any of them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sandbox.service.wire.e2b.errors import WireError

MOST_HEADER_BYTES = 16 << 10
PART, DATA, END = "part", "data", "end"
# As browsers and httpx write them in the names of files.
_ESCAPED = (("%22", '"'), ("%0A", "\n"), ("%0D", "\r"))


async def parts_of(body: AsyncGenerator[bytes, None], parameters: str) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
    """Yield the file name and the bytes of each part named ``file``. Raises WireError."""
    head = Message()
    head["content-type"] = f"multipart/form-data;{parameters}"
    boundary = head.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 200:
        raise WireError("invalid_argument", "The form has no boundary.")
    events = _Events(boundary, body)
    while (event := await events.next()) is not None:
        kind, value = event
        if kind != PART:
            continue
        name, filename = value
        if name == "file" and filename:
            yield filename, events.data()
            await events.rest()


class _Events:
    """What the parser finds in the body, in its order."""

    def __init__(self, boundary: str, body: AsyncGenerator[bytes, None]) -> None:
        self._body, self._found = body, deque[tuple[str, Any]]()
        self._name, self._value, self._headers, self._size = b"", b"", dict[str, str](), 0
        self._in_part = self._ended = False
        self._parser = MultipartParser(
            boundary.encode(),
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_name,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": lambda: self._found.append((END, None)),
                "on_end": self._end,
            },
        )

    async def next(self) -> tuple[str, Any] | None:
        """Return the next event, None at the end of the form. Raises WireError."""
        while not self._found:
            if self._ended:
                return None
            piece = await anext(self._body, None)
            if piece is None:
                raise WireError("invalid_argument", "The form ends before its last boundary.")
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise WireError("invalid_argument", f"The form is not valid: {error}") from error
        event = self._found.popleft()
        self._in_part = event[0] != END
        return event

    async def data(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the present part."""
        while (event := await self.next()) is not None and event[0] == DATA:
            yield event[1]

    async def rest(self) -> None:
        """Skip what is left of the present part."""
        while self._in_part:
            await self.next()

    def _begin(self) -> None:
        self._headers, self._size = {}, 0

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._counted(data[start:end])

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > MOST_HEADER_BYTES:
            raise WireError("invalid_argument", f"The head of a part has more than {MOST_HEADER_BYTES} bytes.")
        return data

    def _end_header(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value.decode("utf-8", "surrogateescape")
        self._name = self._value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", "").encode("utf-8", "surrogateescape"))
        name, path = (options.get(each, b"").decode("utf-8", "surrogateescape") for each in (b"name", b"filename"))
        for escaped, char in _ESCAPED:
            path = path.replace(escaped, char)
        self._found.append((PART, (name, path)))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._found.append((DATA, data[start:end]))

    def _end(self) -> None:
        self._ended = True

