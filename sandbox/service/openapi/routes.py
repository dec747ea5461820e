"""Every route but those of operations: its body, its answers and its refusals. A route that is missing here fails the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sandbox.service.http.bodies import (
    CreateKey,
    CreateSandbox,
    CreateTenant,
    ForkSandbox,
    PutSecret,
    UpdateSandbox,
    UpdateTenant,
)
from sandbox.service.routes.files import DownloadBody
from sandbox.service.routes.ports import ChangePort, CreateToken

from . import answers
from .described import (
    AS_BYTES,
    BYTES,
    CHUNKS,
    EVENTS,
    IDEMPOTENCY_KEY,
    JSON,
    LAST_EVENT_ID,
    METRICS,
    RANGE,
    TAR,
    Answer,
    Described,
    Parameter,
)

SANDBOX = "/v1/sandboxes/{sandbox_id}"
TENANT = "/v1/tenants/{tenant_id}"
PORT = f"{SANDBOX}/ports/{{port}}"
REQUEST = f"{SANDBOX}/requests/{{request_id}}"
_BYTES = {"description": "Bytes."}
_ENVELOPE: Mapping[str, Any] = {"$ref": "#/components/schemas/Envelope"}
_PATH = Parameter(
    "path",
    {"type": "string", "minLength": 1, "maxLength": 4096},
    "A path in the sandbox, relative to its workspace or absolute.",
    required=True,
    example="notes.txt",
)
_CHECKPOINT = Parameter("id", {"type": "string"}, "Id of a checkpoint.", required=True, example="before")
_FOLDER = replace(_PATH, example=".")
# What does not fit is the envelope's to say.
_TARGET = replace(_PATH, schema={"type": "string"})
_STATE_EVENT = 'id: 17\nevent: state\ndata: {"sandbox_id": "bu46nc11swe3k7q516ne", "state": "paused", "reason": null}\n\n'
EVENT_STREAM: Mapping[str, Any] = {
    "description": "Server-sent events, each with id, event and data (JSON); a comment every 15 s. See docs/http.md.",
}
SANDBOX_EXAMPLE = {
    "image": "gamebox/base",
    "limits": {"memory_bytes": 268435456, "cpus": 1},
    "time_to_live_seconds": 3600,
    "metadata": {"job": "7"},
}
SECONDS = Parameter(
    "seconds",
    {"type": "number", "minimum": 0, "maximum": 86400},
    "End the stream after so long; else it ends with the service or the key.",
)


_CURSOR = Parameter("cursor", {"type": "string", "maxLength": 200}, "next_cursor of the page before, as it came.")


def _limit(most: int, default: int) -> Parameter:
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return Parameter("limit", schema, "At most so many.")


def _json(what: str, kind: Any, *headers: str) -> Answer:
    return Answer(what, {JSON: kind}, headers)


def _nothing(what: str) -> Answer:
    return Answer(what)


_OF_STREAM = Answer("The events.", {EVENTS: EVENT_STREAM}, examples={EVENTS: _STATE_EVENT})
_CHANGED = _json("The sandbox as it is now.", answers.Sandbox)
# Of a sandbox that has to run: it is paused, gone, or the engine does not answer.
_RUNNING = (409, 410, 503)

ROUTES: dict[tuple[str, str], Described] = {
    ("GET", "/healthz"): Described("healthz", {200: _json("The process answers.", answers.Health)}),
    ("GET", "/readyz"): Described("readyz", {200: _json("Requests are taken.", answers.Health)}, problems=(503,)),
    ("GET", "/openapi.json"): Described("openapi", {200: _json("This document.", {"type": "object"})}),
    ("GET", "/problems/{code}"): Described(
        "problem_type", {200: _json("What the code means.", answers.ProblemType)}, problems=(404,)
    ),
    ("GET", "/metrics"): Described("metrics", {200: Answer("Numbers for Prometheus.", {METRICS: {"type": "string"}})}),
    ("GET", "/v1/audit"): Described(
        "list_audit",
        {200: _json("A page of the audit.", answers.AuditEntries)},
        parameters=(
            _limit(1000, 100),
            _CURSOR,
            *(
                Parameter(name, {"type": "string"}, f"Only entries with this {name}.")
                for name in ("tenant", "key_id", "action", "target", "outcome")
            ),
        ),
    ),
    ("GET", "/v1/whoami"): Described("whoami", {200: _json("The key.", answers.Whoami)}),
    ("POST", "/v1/keys"): Described(
        "create_key",
        {201: _json("The new key, which no other answer has.", answers.Key)},
        body=CreateKey,
        body_example={"name": "ci", "scope": "manage", "expires_seconds": 86400},
    ),
    ("GET", "/v1/keys"): Described("list_keys", {200: _json("The keys.", answers.Keys)}),
    ("DELETE", "/v1/keys/{key_id}"): Described("revoke_key", {204: _nothing("It is refused from now on.")}, problems=(404,)),
    ("PUT", "/v1/secrets/{secret_name}"): Described(
        "put_secret",
        {200: _json("It has another value.", answers.Secret), 201: _json("It is new.", answers.Secret)},
        body=PutSecret,
        body_required=True,
        body_example={"value": "a-value-of-8-characters-or-more"},
    ),
    ("GET", "/v1/secrets"): Described("list_secrets", {200: _json("The secrets.", answers.Secrets)}),
    ("DELETE", "/v1/secrets/{secret_name}"): Described("delete_secret", {204: _nothing("It is forgotten.")}, problems=(404,)),
    ("GET", "/v1/quota"): Described("get_quota", {200: _json("Ceiling, quota, and what is in use.", answers.QuotaOfTenant)}),
    ("POST", "/v1/tenants"): Described(
        "create_tenant",
        {201: _json("The tenant, which has no key yet.", answers.Tenant, "Location")},
        body=CreateTenant,
        body_required=True,
        body_example={"id": "acme", "quota": {"sandboxes": 10}, "ceiling": {"network": "none"}},
        problems=(409,),
    ),
    ("GET", "/v1/tenants"): Described("list_tenants", {200: _json("All tenants.", answers.Tenants)}),
    ("GET", TENANT): Described("get_tenant", {200: _json("The tenant.", answers.Tenant)}, problems=(404,)),
    ("PATCH", TENANT): Described(
        "update_tenant",
        {200: _json("The tenant as it is now.", answers.Tenant)},
        body=UpdateTenant,
        body_example={"quota": {"sandboxes": 20}},
        problems=(404, 409),
    ),
    ("DELETE", TENANT): Described("delete_tenant", {204: _nothing("Nothing is left of it.")}, problems=(404, 409)),
    ("POST", f"{TENANT}/keys"): Described(
        "create_key_of_tenant",
        {201: _json("The new key, which no other answer has.", answers.Key)},
        body=CreateKey,
        body_example={"name": "ci", "scope": "manage"},
        problems=(404, 409),
    ),
    ("GET", f"{TENANT}/keys"): Described(
        "list_keys_of_tenant", {200: _json("The keys of the tenant.", answers.Keys)}, problems=(404,)
    ),
    ("DELETE", f"{TENANT}/keys/{{key_id}}"): Described(
        "revoke_key_of_tenant", {204: _nothing("It is refused from now on.")}, problems=(404,)
    ),
    ("POST", "/v1/sandboxes"): Described(
        "create_sandbox",
        {201: _json("The sandbox runs.", answers.Sandbox, "Location")},
        body=CreateSandbox,
        body_example=SANDBOX_EXAMPLE,
        parameters=(IDEMPOTENCY_KEY,),
        problems=(409, 502, 503, 507),
    ),
    ("GET", "/v1/sandboxes"): Described(
        "list_sandboxes",
        {200: _json("A page of sandboxes.", answers.Sandboxes)},
        parameters=(
            Parameter(
                "state",
                {"type": "string", "pattern": "^{0}(,{0})*$".format("(creating|running|paused|deleting|ended|lost)")},
                "Only those in one of these states.",
                example="running,paused",
            ),
            _limit(200, 50),
            _CURSOR,
            Parameter("metadata.NAME", {"type": "string"}, "Only those with this text as metadata NAME, any name of yours."),
        ),
    ),
    ("GET", SANDBOX): Described("get_sandbox", {200: _json("The sandbox.", answers.Sandbox)}, problems=(404, 503)),
    ("PATCH", SANDBOX): Described(
        "update_sandbox",
        {200: _CHANGED},
        body=UpdateSandbox,
        body_example={"time_to_live_seconds": 7200},
        problems=(404, *_RUNNING),
    ),
    ("DELETE", SANDBOX): Described("delete_sandbox", {204: _nothing("Nothing is left of it.")}, problems=(404, 503)),
    ("POST", f"{SANDBOX}/pause"): Described("pause_sandbox", {200: _CHANGED}, problems=(404, *_RUNNING)),
    ("POST", f"{SANDBOX}/resume"): Described("resume_sandbox", {200: _CHANGED}, problems=(404, *_RUNNING)),
    ("POST", f"{SANDBOX}/fork"): Described(
        "fork_sandbox",
        {201: _json("The new sandboxes run.", answers.Sandboxes)},
        body=ForkSandbox,
        body_example={"count": 1},
        parameters=(IDEMPOTENCY_KEY,),
        problems=(404, *_RUNNING, 502, 507),
    ),
    ("GET", f"{SANDBOX}/requests"): Described(
        "list_requests", {200: _json("The operations under way.", answers.RequestsUnderWay)}, problems=(404,)
    ),
    ("GET", REQUEST): Described(
        "get_request",
        {200: Answer("The envelope of the operation, or its output as it comes.", {JSON: _ENVELOPE, EVENTS: EVENT_STREAM})},
        parameters=(LAST_EVENT_ID, AS_BYTES),
        problems=(404, 410),
    ),
    ("DELETE", REQUEST): Described(
        "cancel_request", {204: _nothing("Nothing of it runs any more.")}, problems=(404,)
    ),
    ("PUT", f"{REQUEST}/stdin"): Described(
        "send_stdin",
        {204: _nothing("The command has read all of it, or reads no more.")},
        body=_BYTES,
        body_media=BYTES,
        problems=(404, 409),
    ),
    ("GET", f"{SANDBOX}/files"): Described(
        "get_file",
        {
            200: Answer("The bytes of the file.", {BYTES: None}, ("Accept-Ranges", "Content-Disposition")),
            206: Answer("Some of them.", {BYTES: None}, ("Accept-Ranges", "Content-Disposition", "Content-Range")),
        },
        parameters=(_PATH, RANGE),
        problems=(404, 416, *_RUNNING),
    ),
    ("PUT", f"{SANDBOX}/files"): Described(
        "put_file",
        {200: _json("The envelope of the upload.", _ENVELOPE)},
        body=_BYTES,
        body_media=BYTES,
        parameters=(
            _TARGET,
            Parameter("mode", {"type": "string", "pattern": "^0?[0-7]{1,3}$"}, "Mode of the file, octal.", example="755"),
        ),
        problems=(404, 408),
    ),
    ("GET", f"{SANDBOX}/trees"): Described(
        "get_tree",
        {200: Answer("The folder. One without its last two blocks of zeros was cut off.", {TAR: None}, ("Content-Disposition",))},
        parameters=(_FOLDER,),
        problems=(404, *_RUNNING),
    ),
    ("PUT", f"{SANDBOX}/trees"): Described(
        "put_tree",
        {200: _json("The envelope of the upload.", _ENVELOPE)},
        body=_BYTES,
        body_media=TAR,
        parameters=(
            _TARGET,
            Parameter("initial", {"type": "boolean", "default": False}, "Changes are compared with it."),
        ),
        problems=(404, 408),
    ),
    ("POST", f"{SANDBOX}/download"): Described(
        "download",
        {
            200: Answer(
                "Chunks, each after its length in 4 bytes, big end first; after a length of 0, the envelope. The envelope alone, "
                "as JSON, if the sandbox cannot be used.",
                {CHUNKS: None, JSON: _ENVELOPE},
            )
        },
        body=DownloadBody,
        body_required=True,
        body_example={"path": "notes.txt"},
        problems=(404,),
    ),
    ("GET", f"{SANDBOX}/checkpoints"): Described(
        "get_checkpoint",
        {200: Answer("The checkpoint, which PUT takes.", {TAR: None}, ("Content-Disposition",))},
        parameters=(_CHECKPOINT,),
        problems=(404, *_RUNNING),
    ),
    ("PUT", f"{SANDBOX}/checkpoints"): Described(
        "put_checkpoint",
        {200: _json("The envelope of the new checkpoint.", _ENVELOPE)},
        body=_BYTES,
        body_media=TAR,
        parameters=(replace(_CHECKPOINT, required=False, description="Id of the new one; without it, one is made up."),),
        problems=(404, 408, 410, 507),
    ),
    ("GET", f"{SANDBOX}/connections"): Described(
        "list_connections",
        {200: Answer("The connections, or events of those that end.", {JSON: answers.SandboxConnections, EVENTS: EVENT_STREAM})},
        parameters=(LAST_EVENT_ID,),
        problems=(404, *_RUNNING),
    ),
    ("GET", f"{SANDBOX}/ports"): Described("list_ports", {200: _json("The ports.", answers.SandboxPorts)}, problems=(404,)),
    ("GET", PORT): Described("get_port", {200: _json("The port.", answers.SandboxPort)}, problems=(404,)),
    ("PUT", PORT): Described(
        "change_port",
        {200: _json("The port as it is now.", answers.SandboxPort)},
        body=ChangePort,
        body_required=True,
        body_example={"public": True},
        problems=(404, *_RUNNING),
    ),
    ("DELETE", PORT): Described("close_port", {204: _nothing("It is private.")}, problems=(404, *_RUNNING)),
    ("POST", f"{PORT}/tokens"): Described(
        "create_port_token",
        {201: _json("The token, which no other answer has.", answers.PortToken)},
        body=CreateToken,
        body_example={"expires_seconds": 600},
        problems=(404, *_RUNNING),
    ),
    ("GET", f"{SANDBOX}/events"): Described(
        "watch_sandbox", {200: _OF_STREAM}, parameters=(LAST_EVENT_ID, SECONDS), problems=(404, 410)
    ),
    ("GET", "/v1/events"): Described(
        "watch_sandboxes", {200: _OF_STREAM}, parameters=(LAST_EVENT_ID, SECONDS), problems=(410,)
    ),
}
