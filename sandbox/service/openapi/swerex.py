"""The routes of SWE-ReX's wire, for the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.service.operators.facts import EXCEPTION_STATUS
from sandbox.service.wire.swerex import models
from sandbox.service.wire.swerex.routes import PREFIX

from .described import JSON, REQUEST_ID, Answer, Described

FORM = "multipart/form-data"
_PROBLEMS = (404, 409, 410, 503)


def _object(*names: str) -> Mapping[str, Any]:
    return {"type": "object", "required": list(names)}


def _route(name: str, body: Any, example: Any, *answered: str) -> tuple[tuple[str, str], Described]:
    answers = {
        200: Answer("What it came to.", {JSON: _object(*answered)}),
        EXCEPTION_STATUS: Answer("An exception, which the client raises again.", {JSON: _object("swerexception")}),
    }
    ident = f"swerex_{name}"
    described = Described(
        ident, answers, body, body_required=True, body_example=example, parameters=(REQUEST_ID,), problems=_PROBLEMS
    )
    return ("POST", f"{PREFIX}/{name}"), described


_OBSERVATION = ("output", "exit_code", "expect_string")
_UPLOAD = {
    "type": "object",
    "required": ["file", "target_path"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "target_path": {"type": "string", "minLength": 1, "maxLength": 4096},
        "unzip": {"type": "string", "enum": ["true", "false"]},
    },
}
ROUTES: dict[tuple[str, str], Described] = {
    ("POST", f"{PREFIX}/token"): Described(
        "swerex_token", {200: Answer("The token.", {JSON: _object("auth_token")})}, problems=(404, 410)
    ),
    ("GET", f"{PREFIX}/is_alive"): Described(
        "swerex_is_alive", {200: Answer("Whether it answers.", {JSON: _object("is_alive", "message")})}, problems=(404, 503)
    ),
    **dict(
        (
            _route("create_session", models.CreateSession, {"session": "default"}, "output"),
            _route("run_in_session", models.Action, {"action_type": "bash", "command": "true"}, *_OBSERVATION),
            _route("close_session", models.CloseSession, {"session": "default"}),
            _route("execute", models.Execute, {"command": ["true"]}, "stdout", "stderr", "exit_code"),
            _route("read_file", models.ReadFile, {"path": "notes.txt"}, "content"),
            _route("write_file", models.WriteFile, {"path": "notes.txt", "content": "text"}),
        )
    ),
    ("POST", f"{PREFIX}/upload"): Described(
        "swerex_upload",
        {
            200: Answer("It is written.", {JSON: _object()}),
            EXCEPTION_STATUS: Answer("An exception, which the client raises again.", {JSON: _object("swerexception")}),
        },
        _UPLOAD,
        FORM,
        body_required=True,
        problems=_PROBLEMS,
    ),
    ("POST", f"{PREFIX}/close"): Described(
        "swerex_close", {200: Answer("No session is left.", {JSON: _object()})}, problems=_PROBLEMS
    ),
}
