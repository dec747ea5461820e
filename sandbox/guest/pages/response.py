"""What a server answered, as one process passes it on to another."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

SNIFFED = 1024
TEXT_TYPES = (
    "json",
    "xml",
    "javascript",
    "ecmascript",
    "yaml",
    "toml",
    "x-sh",
    "sql",
    "x-www-form-urlencoded",
    "x-ndjson",
    "graphql",
)


class Response:
    """A server's answer. ``size_bytes`` is the length of the body as it was received, ``body`` its content, maybe truncated.

    ``url`` is where it came from, ``redirects`` are the URLs to which the one that was asked for led, this one last.
    """

    __slots__ = ("body", "charset", "content_type", "location", "redirects", "size_bytes", "status", "truncated", "url")

    def __init__(
        self,
        url: str,
        status: int,
        content_type: str,
        charset: str | None,
        location: str | None,
        body: bytes,
        size_bytes: int,
        truncated: bool,
        redirects: list[str],
    ) -> None:
        self.url = url
        self.status = status
        self.content_type = content_type
        self.charset = charset
        self.location = location
        self.body = body
        self.size_bytes = size_bytes
        self.truncated = truncated
        self.redirects = redirects

    def kind(self) -> str:
        """Return how to present the body: "html", "text" or "other"."""
        head = self.body[:SNIFFED].lstrip().lower()
        mime = self.content_type
        if mime in ("text/html", "application/xhtml+xml"):
            return "html"
        if mime.startswith("text/") or mime.rpartition("/")[2].rpartition("+")[2] in TEXT_TYPES:
            return "text"
        if mime and mime != "application/octet-stream":
            return "other"
        if head.startswith((b"<!doctype html", b"<html")):
            return "html"
        return "other" if b"\0" in head else "text"

    def write(self, file: BinaryIO) -> None:
        """Write it: a line of JSON, and the body."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "body"}
        file.write(json.dumps({**fields, "body_bytes": len(self.body)}).encode() + b"\n")
        file.write(self.body)

    @classmethod
    def read(cls, fields: dict[str, Any], file: BinaryIO) -> Response:
        """Return what ``write`` wrote; ``fields`` are the line, and ``file`` has the rest. Raises EOFError if that was cut off."""
        body = file.read()
        if len(body) != fields.pop("body_bytes"):
            raise EOFError
        return cls(body=body, **fields)
