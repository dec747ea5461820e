"""The ports of a sandbox that a client of E2B has made: open to all that know its name, or to those with the sandbox's token."""

from __future__ import annotations

import hmac
from typing import Literal

from sandbox.service.store.sandboxes import SandboxRecord

from .headers import TRAFFIC_HEADER, Headers, text_of
from .tokens import PortTokens

# Of the options of a sandbox. One without it has the ports that its owner opens, one by one.
OPTION = "traffic"
Traffic = Literal["public", "token"]


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
