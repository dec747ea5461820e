"""The ports of a sandbox that a client of E2B has made: open to all that know its name, or to those with the sandbox's token."""

from __future__ import annotations

import hmac
from typing import Literal

from sandbox.errors import ErrorCode
from sandbox.service.http.hosts import parse_host
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables.sandboxes import SandboxRecord

from .headers import TRAFFIC_HEADER, Headers, text_of
from .tokens import PortTokens

# Of the options of a sandbox. One without it has the ports that its owner opens, one by one.
OPTION = "traffic"
Traffic = Literal["public", "token"]
# The Host that servers in the sandbox are to see, and the place of the port in it.
MASK, PLACE = "mask_host", "${PORT}"
MOST_CHARACTERS = 300
_GONE = (ErrorCode.sandbox_paused, ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_not_found)


def traffic_token(tokens: PortTokens, sandbox: str) -> str:
    """Return the token for all ports of a sandbox; it is valid as long as the sandbox is there."""
    return f"gbt_{tokens.sign(f'gamebox traffic token 1|{sandbox}')}"


def is_let_in(tokens: PortTokens, record: SandboxRecord, headers: Headers) -> bool:
    """Return whether a request may reach any port of the sandbox."""
    if record.options.get(OPTION) == "public":
        return True
    sent = text_of(headers, TRAFFIC_HEADER)
    if record.options.get(OPTION) != "token" or sent is None:
        return False
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), traffic_token(tokens, record.id).encode())


def check_mask(text: str) -> None:
    """Raise Problem for what is not a Host with or without the place of a port."""
    if len(text) > MOST_CHARACTERS or (text and (text != text.strip() or parse_host(text.replace(PLACE, "65535")) is None)):
        raise Problem(
            400,
            ProblemCode.invalid_body,
            f"maskRequestHost is {text[:80]!r}.",
            f"Give the name of a host, with or without a port, as in localhost:{PLACE}.",
        )


def masked_host(record: SandboxRecord, port: int) -> bytes | None:
    """Return the Host that a server in the sandbox is to see, None for that of the request."""
    mask = record.options.get(MASK)
    return mask.replace(PLACE, str(port)).encode("ascii") if isinstance(mask, str) else None


def in_words_of_e2b(problem: Problem, record: SandboxRecord, port: int) -> Problem:
    """Return a refusal as programs read it that know E2B: by its status, and by words in ``message``."""
    if record.options.get(OPTION) is None:
        return problem
    status, message, headers = problem.status, problem.detail, dict(problem.headers)
    detail, hint = problem.detail, problem.hint
    if problem.code is ProblemCode.port_closed:
        message = "The sandbox is running but port is not open"
    elif problem.code in _GONE:
        status, message = 502, "The sandbox was not found"
    elif problem.code is ProblemCode.unauthorized:
        status, message = 403, "The sandbox is open only to requests with its traffic access token"
        detail, hint = f"{message}.", f"Send its traffic_access_token in the header {TRAFFIC_HEADER}."
        headers.pop("WWW-Authenticate", None)
    found = Problem(status, problem.code, detail, hint, retryable=problem.retryable, headers=headers)
    found.fields = {**problem.fields, "code": status, "message": message, "sandboxId": record.id, "port": port}
    return found
