"""The codes of a service's problems that no sandbox has. A service answers those of ``ErrorCode`` as problems, too."""

from __future__ import annotations

from enum import StrEnum


class ProblemCode(StrEnum):
    """What a ``SandboxError`` of a remote environment may have as its code, beside ``ErrorCode``."""

    unauthorized = "unauthorized"
    locked_out = "locked_out"
    forbidden = "forbidden"
    forbidden_by_operator = "forbidden_by_operator"
    route_not_found = "route_not_found"
    method_not_allowed = "method_not_allowed"
    unknown_operation = "unknown_operation"
    key_not_found = "key_not_found"
    secret_not_found = "secret_not_found"  # noqa: S105
    template_not_found = "template_not_found"
    tenant_not_found = "tenant_not_found"
    tenant_exists = "tenant_exists"
    quota_exceeded = "quota_exceeded"
    request_not_found = "request_not_found"
    request_id_reused = "request_id_reused"
    idempotency_key_reused = "idempotency_key_reused"
    creation_in_progress = "creation_in_progress"
    invalid_request = "invalid_request"
    invalid_json = "invalid_json"
    invalid_body = "invalid_body"
    invalid_query = "invalid_query"
    body_too_large = "body_too_large"
    request_timeout = "request_timeout"
    output_gone = "output_gone"
    events_gone = "events_gone"
    range_not_satisfiable = "range_not_satisfiable"
    wrong_state = "wrong_state"
    wrong_host = "wrong_host"
    origin_refused = "origin_refused"
    too_many_connections = "too_many_connections"
    port_closed = "port_closed"
    port_failed = "port_failed"
    draining = "draining"
    store_unavailable = "store_unavailable"
    internal_error = "internal_error"
