"""Errors as clients of E2B read them, and the routes that answer so."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from sandbox.envelope import Envelope
from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.http.problems import Problem, ProblemCode, problem_of
from sandbox.service.operators.facts import note

JSON = "application/json"
# The codes of the Connect protocol, with their statuses.
STATUS: Mapping[str, int] = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
_BY_STATUS = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "failed_precondition",
    413: "resource_exhausted",
    415: "invalid_argument",
    422: "invalid_argument",
    429: "resource_exhausted",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    507: "resource_exhausted",
}
# What an operation could not do, where the status of the problem does not say it.
_BY_CODE: Mapping[str, str] = {
    ErrorCode.path_exists: "already_exists",
    ErrorCode.timeout: "deadline_exceeded",
    ErrorCode.cancelled: "canceled",
    ErrorCode.unknown_command: "not_found",
    ErrorCode.command_ended: "not_found",
    ErrorCode.stdin_closed: "internal",
    ErrorCode.user_not_found: "unauthenticated",
    ErrorCode.user_not_allowed: "permission_denied",
    ErrorCode.too_many_commands: "resource_exhausted",
    ErrorCode.too_many_processes: "resource_exhausted",
    ErrorCode.no_space: "resource_exhausted",
}
GONE = (ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_paused, ErrorCode.sandbox_not_found)
# Retries of the client take seconds, and do not help here.
_FINAL = (ProblemCode.quota_exceeded, ProblemCode.locked_out, ErrorCode.capacity)


class WireError(Exception):
    """An answer of envd: the ``code`` of the Connect protocol and a sentence; ``status`` is that of the answer over HTTP."""

    def __init__(self, code: str, message: str, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.headers = code, message, dict(headers or {})
        self.status = STATUS[code] if status is None else status

    def data(self) -> dict[str, Any]:
        """Return it as the error of a stream or of a call."""
        return {"code": self.code, "message": self.message}


class SandboxGoneError(WireError):
    """The sandbox does not run: clients tell by the words and the status that it was killed, or has come to its end."""

    def __init__(self, sandbox: str) -> None:
        super().__init__("unavailable", "The sandbox was not found", 502)
        self.sandbox = sandbox

    def data(self) -> dict[str, Any]:
        """See the base class; the number is the status, as E2B's proxy has it."""
        return {"sandboxId": self.sandbox, "message": self.message, "code": 502}


def wire_error(error: SandboxError | Problem, sandbox: str = "") -> WireError:
    """Return what envd answers in the place of an error of ours."""
    if error.code in GONE:
        return SandboxGoneError(sandbox)
    problem = error if isinstance(error, Problem) else problem_of(error)
    code = _BY_CODE.get(error.code) or _BY_STATUS.get(problem.status, "internal")
    status = 507 if error.code in (ErrorCode.no_space, ErrorCode.host_disk_full) else STATUS[code]
    return WireError(code, _sentence(problem), status, problem.headers)


def unwrapped(envelope: Envelope[Any], sandbox: str) -> Any:
    """Return the result of an operation. Raises WireError."""
    try:
        return envelope.unwrap()
    except SandboxError as error:
        raise wire_error(error, sandbox) from error


class ApiRoute(APIRoute):
    """A route of the REST API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (Problem, SandboxError, RequestValidationError) as error:
                return _api_answer(request, _problem_of(error))

        return answer


class VolumeRoute(APIRoute):
    """A route of the content of volumes, whose codes are texts. What is missing in a volume is missing, and nothing is retried."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (Problem, SandboxError, RequestValidationError) as error:
                problem = _problem_of(error)
                note(request.scope, code=problem.code.value)
                status = 400 if problem.status == 422 else problem.status
                if problem.code in (ErrorCode.no_space, ErrorCode.host_disk_full):
                    status = 507
                data = {"code": str(status), "message": _sentence(problem)}
                headers = {**problem.headers, "Should-Retry": "false"}
                return Response(json.dumps(data).encode(), status, media_type=JSON, headers=headers)

        return answer


class EnvdRoute(APIRoute):
    """A route of envd: a call of the Connect protocol if its path has the name of a service, else one over plain HTTP."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See the base class."""
        handle, is_call = super().get_route_handler(), "." in self.path

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except WireError as error:
                wrong = error
            except ClientDisconnect:
                wrong = WireError("canceled", "The client disconnected before the end of its request.")
            except (Problem, SandboxError, RequestValidationError) as error:
                problem = error if isinstance(error, SandboxError) else _problem_of(error)
                wrong = wire_error(problem, str(request.scope["state"].get("target", "")))
            note(request.scope, code=wrong.code)
            plain = {"code": wrong.status, "message": wrong.message}
            data = wrong.data() if is_call or isinstance(wrong, SandboxGoneError) else plain
            return Response(json.dumps(data).encode(), wrong.status, media_type=JSON, headers=wrong.headers)

        return answer


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, SandboxError):
        return problem_of(error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return Problem(400, ProblemCode.invalid_query, f"{'.'.join(map(str, first['loc']))}: {first['msg']}.", "Correct that.")
    assert isinstance(error, Problem)  # noqa: S101  # it is called for no other
    return error


def _api_answer(request: Request, problem: Problem) -> Response:
    note(request.scope, code=problem.code.value)
    status, data = api_error(problem)
    headers = dict(problem.headers)
    if status >= 429:
        headers["Should-Retry"] = "true" if problem.retryable and problem.code not in _FINAL else "false"
    return Response(json.dumps(data).encode(), status, media_type=JSON, headers=headers)


def api_error(error: Problem | SandboxError) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error of the REST API."""
    problem = _problem_of(error)
    status = problem.status
    if problem.code in GONE:
        status = 404 if problem.code is not ErrorCode.sandbox_paused else 409
    elif status == 422 and problem.code is not ProblemCode.idempotency_key_reused:
        status = 400
    return status, {"code": status, "message": _sentence(problem), "error_code": problem.code.value}


def _sentence(problem: Problem) -> str:
    hint = str(problem.hint)
    return f"{problem.detail} {hint}" if hint else problem.detail
