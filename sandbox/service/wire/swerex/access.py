"""Who may use a sandbox over this wire: those with a key of the service, or with a token that also names the sandbox."""

from __future__ import annotations

import hmac
import re
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.service.house import House, house_of, user
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.operators.facts import note
from sandbox.service.tenants.metering import visit_of

ROOT = "/wire/swerex"
TOKEN_PREFIX = "gbs_"  # noqa: S105  # not a secret
_TOKEN = re.compile(r"gbs_([a-z][a-z0-9]{0,40})_([0-9a-z]{1,40})_[A-Za-z0-9_-]{43}")
_PATHS = frozenset(
    f"/{name}"
    for name in (
        *("is_alive", "create_session", "run_in_session", "close_session"),
        *("execute", "read_file", "write_file", "upload", "close"),
    )
)


def token_of(house: House, sandbox: str, key: str) -> str:
    """Return the token of a sandbox for those with the key of that id. It ends with the key, and with the sandbox."""
    return f"{TOKEN_PREFIX}{sandbox}_{key}_{house.tokens.sign(f'gamebox swerex token 1|{sandbox}|{key}')}"


async def visitor(request: HTTPConnection) -> Caller:
    """Return who sent the request, if they may use the sandbox of its path. Raises Problem."""
    token = request.headers.get("x-api-key", "")
    if not token.startswith(TOKEN_PREFIX):
        return await user(request)
    house, sandbox = house_of(request), request.path_params["sandbox_id"]
    found, caller = _TOKEN.fullmatch(token), None
    if found is not None and found[1] == sandbox and hmac.compare_digest(token, token_of(house, sandbox, found[2])):
        caller = house.keys.caller_by_id(found[2])
    if caller is None:
        raise _refusal(request)
    note(request.scope, caller=caller)
    visit = visit_of(request.scope)
    visit.enter(house.tenants.find(caller.tenant), house.tenants.ledger, house.callers, caller.key)
    await visit.wait(house.tenants.pace)
    return caller


Visitor = Annotated[Caller, Depends(visitor)]


def _refusal(request: HTTPConnection) -> Problem:
    """Return the problem of a wrong token, and count it for its address. Raises Problem if that is locked out."""
    try:
        house_of(request).keys.caller(None, request.client.host if request.client is not None else "")
    except Problem as problem:
        if problem.status == 429:
            raise
    return Problem(
        401,
        ProblemCode.unauthorized,
        "The auth_token is not valid for this sandbox: it was made for another one, or its key was revoked.",
        f"Ask for one with a key of the service: POST {ROOT}/ID/token.",
    )


class RootPaths:
    """Has the paths of SWE-ReX's own server, at the root of the service, lead to the sandbox that the token names.

    A ``RemoteDeploymentConfig`` has a host, a port and a token, and no room for the name of a sandbox. Requests without such a
    token are passed on: other dialects have some of the paths, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and scope["path"] in _PATHS:
            token = next((value for name, value in scope["headers"] if name == b"x-api-key"), b"").decode("latin-1")
            if (found := _TOKEN.fullmatch(token)) is not None:
                path = f"{ROOT}/{found[1]}{scope['path']}"
                scope = {**scope, "path": path, "raw_path": path.encode()}
            elif scope["path"] == "/is_alive":  # the first that a client asks for, which shows the detail
                problem = Problem(
                    401,
                    ProblemCode.unauthorized,
                    f"The host names no sandbox, and the auth_token is not the token of one: make a token (POST {ROOT}/ID/token), "
                    f"or give the host URL{ROOT}/ID with a key as the auth_token.",
                    "docs/how-to/integrations/swe-rex.md has the lines to copy.",
                )
                note(scope, code=problem.code.value)
                await problem.response(str(scope.get("state", {}).get("request_id", "")))(scope, receive, send)
                return
        await self._app(scope, receive, send)
