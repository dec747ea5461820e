"""The code interpreter of E2B's clients: a server in the sandbox, which the service starts, and whom it lets run code there.

It is reached like any other port. Nothing of what it says is read here: the service passes on the bytes of a server that belongs
to the sandbox.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from dataclasses import dataclass, field

from sandbox.errors import SandboxError
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import House
from sandbox.service.http.payloads.reading import new_request_id
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables.sandboxes import SandboxRecord

from .headers import SANDBOX_TOKEN, Headers, text_of
from .tokens import PortTokens
from .traffic import OPTION

PORT = 49999
IMAGE = "gamebox/code-interpreter"
# Of the image. Python itself is looked up in the PATH of the sandbox.
PROGRAM = "/opt/gamebox-interpreter/server.py"
TOKEN_HEADER = "x-access-token"  # noqa: S105  # a name
# It listens 0.1 s after its start, and on a host under load some seconds after it. One that was killed is started again.
START_SECONDS = 30.0
# As often at most. A second one that was started too early finds the port taken, and ends.
AGAIN_SECONDS = 3.0
CHECK_SECONDS = 20.0
_IS_THERE = ("/bin/sh", "-c", 'test -f "$1"', "sh")
_TOKEN = re.compile(SANDBOX_TOKEN + r"([a-z][a-z0-9]{0,40})_([0-9a-z]{1,40})_[A-Za-z0-9_-]{43}")
# Clients send no token with these; they run no code.
_OPEN_PATH = re.compile(rb"/health|/contexts(?:/[0-9a-f-]{1,40}(?:/restart)?)?")


def sandbox_token(tokens: PortTokens, sandbox: str, key: str) -> str:
    """Return the token of a sandbox for those with the key of that id. It ends with the key."""
    return f"{SANDBOX_TOKEN}{sandbox}_{key}_{tokens.sign(f'gamebox envd token 1|{sandbox}|{key}')}"


def read_sandbox_token(tokens: PortTokens, text: str) -> tuple[str, str] | None:
    """Return the sandbox and the id of the key that a token is for; None for what is no token of this service."""
    found = _TOKEN.fullmatch(text)
    if found is None or not hmac.compare_digest(text, sandbox_token(tokens, found[1], found[2])):
        return None
    return found[1], found[2]


def is_interpreter(record: SandboxRecord, port: int) -> bool:
    """Return whether this is the port of the interpreter, in a sandbox that a client of E2B has made."""
    return port == PORT and record.options.get(OPTION) is not None


def key_of_token(house: House, record: SandboxRecord, headers: Headers) -> str | None:
    """Return the id of the key with whose token of this sandbox a request comes, None if it has no valid one."""
    found = read_sandbox_token(house.tokens, text_of(headers, TOKEN_HEADER) or "")
    if found is None or found[0] != record.id or not house.keys.is_valid_key(found[1], record.tenant):
        return None
    return found[1]


def check_may_run(path: bytes) -> None:
    """Raise Problem for a request without a token that would run code: to know a sandbox's name is not enough for that."""
    if _OPEN_PATH.fullmatch(path) is None:
        raise Problem(
            403,
            ProblemCode.forbidden,
            f"Port {PORT} of this sandbox runs code, and is open only to requests with the sandbox's access token.",
            "Send its envdAccessToken in the header X-Access-Token, as clients of E2B do, or a key of its tenant.",
        )


@dataclass(slots=True)
class _Start:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float = float("-inf")
    missing: bool = False


async def start(house: House, live: LiveSandbox, *, is_there: bool = False) -> None:
    """Start the server of a sandbox, unless that was done a moment ago. Raises Problem, SandboxError.

    ``is_there`` says that its image is known to have one.
    """
    found: _Start = live.beside.setdefault(_Start, _Start())
    async with found.lock:
        if found.missing:
            raise _missing()
        if time.monotonic() < found.at + AGAIN_SECONDS:
            return
        if not is_there:
            await _look(house, live, found)
        args = {"argv": ["python3", PROGRAM], "session": None, "background": True}
        (await (await live.send(house.database, "run", args, new_request_id())).envelope()).unwrap()
        found.at = time.monotonic()


async def _look(house: House, live: LiveSandbox, found: _Start) -> None:
    args = {"argv": [*_IS_THERE, PROGRAM], "session": None, "timeout_seconds": CHECK_SECONDS}
    looked = (await (await live.send(house.database, "run", args, new_request_id())).envelope()).unwrap()
    if looked.exit_code != 0:
        found.missing = True
        raise _missing()


async def warm(house: House, live: LiveSandbox) -> None:
    """Start it before anybody asks for it. Raises nothing: the first request tries it again, and is answered why it fails."""
    try:
        await start(house, live, is_there=True)
    except (Problem, SandboxError):
        pass


def _missing() -> Problem:
    return Problem(
        501,
        ProblemCode.port_failed,
        f"Nothing listens on port {PORT} of the sandbox, and its image has no code interpreter.",
        f"Create it from the template code-interpreter-v1, which is the image {IMAGE}.",
    )
