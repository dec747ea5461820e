"""WebSockets to a service, with the library ``websockets`` (extra ``remote``), which nothing else of the client needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from sandbox.errors import ErrorCode, SandboxError

from .service import CONNECT_SECONDS, Service, error_of, unreachable

if TYPE_CHECKING:
    from websockets.asyncio.client import connect as connect_async
    from websockets.sync.client import ClientConnection

# A message that a service would not send.
MOST_BYTES = 4 << 20


def check_library(what: str) -> None:
    """Raise SandboxError if the library is missing."""
    try:
        import websockets.sync.client  # noqa: F401
    except ImportError as error:
        message = f"{what} over a service needs the library websockets, which is not installed."
        raise SandboxError(ErrorCode.invalid_configuration, message, "Install it: pip install 'gamebox[remote]'.") from error


def options(service: Service) -> dict[str, Any]:
    """Return the options of a connection, for both kinds."""
    return {
        "additional_headers": {"Authorization": f"Bearer {service.api_key}"},
        "compression": None,
        "max_size": MOST_BYTES,
        "open_timeout": CONNECT_SECONDS + 20,
        "proxy": None if service.is_direct else True,
        "user_agent_header": "gamebox",
        **({} if service.trust is None else {"ssl": service.trust}),
    }


def address(service: Service, path: str) -> str:
    """Return the address of a WebSocket at ``path``."""
    return f"ws{service.url.removeprefix('http')}{path}"


def connect(service: Service, path: str) -> ClientConnection:
    """Return a connection, for threads. Raises SandboxError."""
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.sync.client import connect as open_connection

    try:
        # Versions from 17.1 on want a context manager; its end is to close the connection, which the caller does.
        made: ClientConnection = open_connection(address(service, path), **options(service)).__enter__()
        return made
    except InvalidStatus as error:
        answer = httpx.Response(error.response.status_code, content=bytes(error.response.body or b""))
        raise error_of(answer, service.url) from error
    except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
        raise unreachable(error, service.url) from error


def connecting(service: Service, path: str) -> connect_async:
    """Return what makes a connection for asyncio, as the context manager of an ``async with``."""
    from websockets.asyncio.client import connect as connect_async

    return connect_async(address(service, path), max_queue=4, write_limit=256 << 10, close_timeout=2, **options(service))

