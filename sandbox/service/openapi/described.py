"""What is said of a route beside its path, its scope and the docstring of its function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from sandbox.frozen import dataclass

JSON, PROBLEM, EVENTS = "application/json", "application/problem+json", "text/event-stream"
METRICS = "text/plain"
BYTES, TAR, CHUNKS = "application/octet-stream", "application/x-tar", "application/vnd.gamebox.chunks"

Kind = type[BaseModel]
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query, or a header."""

    name: str
    schema: Schema
    description: str
    place: str = "query"
    required: bool = False
    example: Any = None

    def data(self) -> dict[str, Any]:
        """Return it as the document has it."""
        found: dict[str, Any] = {
            "name": self.name,
            "in": self.place,
            "required": self.required,
            "description": self.description,
            "schema": dict(self.schema),
        }
        return found if self.example is None else {**found, "example": self.example}


@dataclass(frozen=True)
class Answer:
    """An answer by its media types. A schema is a type, a schema as JSON, or None for bytes that it says nothing of."""

    description: str
    content: Mapping[str, Kind | Schema | None] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Described:
    """A route; ``ident`` is what generated clients call it.

    ``problems`` are the statuses of its refusals beside those that every route with a key has.
    """

    ident: str
    answers: Mapping[int, Answer]
    body: Kind | Schema | None = None
    body_media: str = JSON
    body_required: bool = False
    body_example: Any = None
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()


_PORT = "^([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"

PATHS: Mapping[str, tuple[str, str, str]] = {
    "sandbox_id": ("^[a-z][a-z0-9]{19}$", "Id of a sandbox.", "bu46nc11swe3k7q516ne"),
    "tenant_id": ("^[a-z0-9][a-z0-9_-]{0,62}$", "Id of a tenant.", "acme"),
    "key_id": ("^k[0-9a-f]{16}$", "Id of a key.", "k0123456789abcdef"),
    "secret_name": ("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", "Name of a secret.", "deploy"),
    "code": ("^[a-z0-9_]{1,40}$", "Code of a problem.", "quota_exceeded"),
    "port": (_PORT, "Number of a port.", "8000"),
    "request_id": ("^[A-Za-z0-9._-]{1,64}$", "Id of a request.", "r05b629c835ac5c8bda155cc5"),
}
"""The parameters of paths: their patterns, what they are, and an example."""

HEADERS: Mapping[str, tuple[Schema, str]] = {
    "X-Request-Id": ({"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"}, "Id of this request: the client's, or one of ours."),
    "Location": ({"type": "string"}, "Path of what was created."),
    "Retry-After": ({"type": "string", "pattern": "^[0-9]+$"}, "Seconds to wait before the next attempt."),
    "Content-Range": ({"type": "string", "pattern": "^bytes "}, "The bytes that are sent, and the size of the file."),
    "Accept-Ranges": ({"type": "string", "const": "bytes"}, "A part can be asked for with Range."),
    "Content-Disposition": ({"type": "string", "const": "attachment"}, "What programs in a sandbox wrote is no page of ours."),
    "WWW-Authenticate": ({"type": "string"}, "How a key is sent."),
    "Allow": ({"type": "string"}, "The methods of this path."),
}
"""Headers of answers."""

IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "A text of your choice: asked again with it, nothing more is created for a day. 409 while the first is under way, 422 for "
    "another body.",
    "header",
    example="job-7",
)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID",
    {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "Go on after this event of the stream.",
    "header",
    example="17",
)
REQUEST_ID = Parameter(
    "X-Request-Id",
    {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    "Names the request: sent again with it, it is carried out once, and answered as the first was.",
    "header",
    example="r05b629c835ac5c8bda155cc5",
)
AS_BYTES = Parameter(
    "X-Gamebox-Bytes",
    {"type": "string", "enum": ["base64"]},
    "Have the envelope hold what is not UTF-8, as base64 in its field bytes.",
    "header",
)
STREAMED_INPUT = Parameter(
    "X-Gamebox-Stdin",
    {"type": "string", "enum": ["stream"]},
    "The standard input of the command will be sent with PUT .../requests/{request_id}/stdin.",
    "header",
)
RANGE = Parameter(
    "Range",
    {"type": "string", "pattern": "^bytes=([0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})$"},
    "One range of bytes.",
    "header",
    example="bytes=0-1023",
)


def phrase(status: int) -> str:
    """Return what HTTP calls a status."""
    return HTTPStatus(status).phrase
