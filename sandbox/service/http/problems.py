"""Errors of the HTTP layer as ``application/problem+json`` (RFC 9457). What an action could not do is an envelope."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from sandbox.client.http.codes import ProblemCode
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.ceiling import CeilingError

__all__ = ["Problem", "ProblemCode", "draining", "problem_of"]

MEDIA_TYPE = "application/problem+json"
# The type of a problem is a reference relative to the service, which answers there what the code means.
TYPES = "/problems/"


class Problem(Exception):  # noqa: N818  # RFC 9457 calls it so
    """An answer of the HTTP layer: what is wrong, in one sentence, and the next step in another."""

    def __init__(
        self,
        status: int,
        code: StrEnum,
        detail: str,
        hint: str = "",
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint = status, code, detail, hint
        self.retryable, self.headers, self.fields = retryable, dict(headers or {}), fields

    def response(self, request_id: str) -> Response:
        """Return the problem as a response to the request with that id."""
        data = {
            "type": f"{TYPES}{self.code.value}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code.value,
            "hint": self.hint,
            "retryable": self.retryable,
            "request_id": request_id,
            **self.fields,
        }
        body = json.dumps(data).encode()
        return Response(body, self.status, media_type=MEDIA_TYPE, headers=self.headers)


def not_allowed(method: str, path: str, allowed: Sequence[str]) -> Problem:
    """Return the problem of a path that has other methods."""
    return Problem(
        405,
        ProblemCode.method_not_allowed,
        f"{method[:20]} is not allowed for {path[:200]}.",
        f"Use {' or '.join(allowed)}." if allowed else "GET /openapi.json lists every route.",
        headers={"Allow": ", ".join(allowed)},
    )


# Everything else is the client's to change: 422.
_STATUS: dict[StrEnum, int] = {
    ErrorCode.path_not_found: 404,
    ErrorCode.checkpoint_not_found: 404,
    ErrorCode.sandbox_not_found: 404,
    ErrorCode.permission_denied: 403,
    ErrorCode.path_outside_roots: 403,
    ErrorCode.operation_not_supported: 409,
    ErrorCode.sandbox_paused: 409,
    ErrorCode.sandbox_owned: 409,
    ErrorCode.sandbox_unavailable: 410,
    ErrorCode.sandbox_closed: 410,
    ErrorCode.file_too_large: 413,
    ErrorCode.io_error: 500,
    ErrorCode.setup_failed: 500,
    ErrorCode.restore_incomplete: 500,
    ErrorCode.engine_permission_denied: 500,
    ErrorCode.engine_error: 502,
    ErrorCode.start_failed: 502,
    ErrorCode.image_build_failed: 502,
    ErrorCode.capacity: 503,
    ErrorCode.host_descriptor_limit: 503,
    ErrorCode.engine_unavailable: 503,
    ErrorCode.engine_timeout: 503,
    ProblemCode.store_unavailable: 503,
    ErrorCode.transfer_incomplete: 503,
    ErrorCode.no_space: 507,
    ErrorCode.host_disk_full: 507,
    ErrorCode.store_full: 507,
}
RETRY_SECONDS = "5"


def problem_of(error: SandboxError) -> Problem:
    """Return the problem that says what ``error`` says."""
    if isinstance(error, CeilingError):
        return Problem(403, ProblemCode.forbidden_by_operator, error.message, error.hint, asked=error.asked)
    status = _STATUS.get(error.code, 422)
    headers = {"Retry-After": RETRY_SECONDS} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    reason = getattr(error, "reason", None)
    fields = {} if reason is None else {"reason": reason}
    retryable = error.retryable or status == HTTPStatus.SERVICE_UNAVAILABLE
    return Problem(
        status, error.code, error.message, error.hint, retryable=retryable, headers=headers, effects=error.effects, **fields
    )


def drains_first() -> Problem:
    """Return the problem of a creation while the service waits for its sandboxes to end."""
    return Problem(
        503,
        ProblemCode.draining,
        "The service creates no more sandboxes: it stops when the existing ones have ended.",
        "Send the request again when a new service has started.",
        retryable=True,
        headers={"Retry-After": "30"},
    )


def draining() -> Problem:
    """Return the problem of a request that comes while the service is about to end."""
    return Problem(
        503,
        ProblemCode.draining,
        "The service is stopping.",
        "Send the request again when a service has started: the sandboxes keep running, and it finds them.",
        retryable=True,
        headers={"Retry-After": "1", "Connection": "close"},
    )
