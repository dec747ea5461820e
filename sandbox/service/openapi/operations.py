"""The operations as routes of the document: each has a path of its own, with the fields of its request and of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from sandbox.operations import OPERATIONS
from sandbox.operations.base import Transfer
from sandbox.operations.result import Result
from sandbox.operations.wire import STATE_METHODS
from sandbox.service.http.state_arguments import STATE_ARGUMENTS

from .described import AS_BYTES, EVENTS, JSON, LAST_EVENT_ID, REQUEST_ID, STREAMED_INPUT, Answer, Described
from .routes import EVENT_STREAM, SANDBOX

REQUESTS: dict[str, type[BaseModel]] = {
    **{name: kind for name, kind in OPERATIONS.items() if not issubclass(kind, Transfer)},
    **STATE_ARGUMENTS,
}
RESULTS: dict[str, type[Result]] = {
    **{name: kind.result for name, kind in OPERATIONS.items() if not issubclass(kind, Transfer)},
    **STATE_METHODS,
}
_OUTPUT = """\
id: 4
event: output
data: {"stream": "stdout", "offset": 0, "data_base64": "b25lCg=="}

id: 4
event: envelope
data: {"tool_executed": true, "result": {"id": "c1", "exit_code": 0, "output": "one\\n"}, \
"timestamp": "2026-01-01T12:00:00+00:00", "duration_ms": 3.1, "notices": []}

"""
# What fits: most operations need a path, or the id of a command.
_EXAMPLES: Mapping[str, Any] = {
    "run": {"command": "echo one"},
    "logs": {"id": "c1"},
    "kill": {"id": "c1"},
    "send": {"id": "c1", "text": "y\n"},
    "resize": {"id": "c1", "rows": 24, "cols": 80},
    "screen": {"id": "c1"},
    "end_session": {"session": "build"},
    "open_session": {"session": "build"},
    "read": {"path": "notes.txt"},
    "write": {"path": "notes.txt", "content": "one\ntwo\n"},
    "edit": {"path": "notes.txt", "old_text": "one", "new_text": "three"},
    "search": {"pattern": "two"},
    "stat": {"path": "notes.txt"},
    "list_details": {"path": "."},
    "make_dir": {"path": "folder"},
    "move": {"path": "notes.txt", "to": "folder/notes.txt"},
    "delete": {"path": "notes.txt"},
    "wait_for": {"file": "notes.txt", "timeout_seconds": 1},
    "browse": {"url": "http://127.0.0.1:8000/", "timeout_seconds": 1},
    "browse_interact": {"steps": [{"action": "fill", "target": "e3", "value": "Ann"}], "timeout_seconds": 1},
    "screenshot": {"full": True, "timeout_seconds": 1},
    "checkpoint": {"name": "before"},
    "mark": {"name": "before"},
    "delete_checkpoint": {"id": "before"},
    "rollback": {"id": "before"},
}


def envelope_name(operation: str) -> str:
    """Return the name of the schema of an operation's envelope."""
    return "".join(word.capitalize() for word in operation.split("_")) + "Envelope"


def envelopes() -> dict[str, Any]:
    """Return the schemas of the envelopes: of every operation, and of any."""

    def envelope(result: Any, unknown: Any) -> dict[str, Any]:
        ref = "#/components/schemas/"
        return {
            "oneOf": [
                {"allOf": [{"$ref": f"{ref}SuccessEnvelope"}, {"properties": {"result": result}}]},
                {"allOf": [{"$ref": f"{ref}FailureEnvelope"}, {"properties": {"result": unknown}}]},
            ]
        }

    found = {"Envelope": envelope({"type": "object"}, {"type": ["object", "null"]})}
    for name, kind in RESULTS.items():
        result = {"$ref": f"#/components/schemas/{kind.__name__}"}
        found[envelope_name(name)] = envelope(result, {"anyOf": [result, {"type": "null"}]})
    return found


def operation_routes() -> dict[tuple[str, str], tuple[Described, str]]:
    """Return the routes of the operations, and what each is for."""
    found = {}
    for name, kind in REQUESTS.items():
        operation = OPERATIONS.get(name)
        content: dict[str, Any] = {
            JSON: {"$ref": f"#/components/schemas/{envelope_name(name)}"},
            EVENTS: EVENT_STREAM,
        }
        streams = {EVENTS: _OUTPUT} if name == "run" else {}
        described = Described(
            name,
            {200: Answer("The envelope, also of what the action could not do.", content, ("X-Request-Id",), streams)},
            body=kind,
            body_required=any(each.is_required() for each in kind.model_fields.values()),
            body_example=_EXAMPLES.get(name, {}),
            parameters=(REQUEST_ID, LAST_EVENT_ID, AS_BYTES, *((STREAMED_INPUT,) if name == "run" else ())),
            problems=(404, 410),
        )
        words = (kind.__doc__ if operation is None else operation.__doc__) or ""
        found["POST", f"{SANDBOX}/{name}"] = (described, words)
    return found
