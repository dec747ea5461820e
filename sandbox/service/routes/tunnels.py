"""The bytes of one connection to a port of a sandbox over a WebSocket, for what is not HTTP."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.websockets import WebSocket

from sandbox.network.services.peer_port import PortStream
from sandbox.service.connections import BAD_CONTROL, ENDED, KEY_GONE, Ending, OpenConnection, reason_of
from sandbox.service.house import User, house_of, sandbox_of
from sandbox.service.http.sockets import Socket
from sandbox.service.ports.access import READ_BYTES, connect
from sandbox.service.ports.proxy import close_soon

from .ports import port_of

router = APIRouter(tags=["ports"])
# The one text frame: its sender sends no more bytes.
END = '{"type": "end"}'
CUT = 4502


@router.websocket("/v1/sandboxes/{sandbox_id}/ports/{port}/tunnel")
async def tunnel(websocket: WebSocket, caller: User, sandbox_id: str, port: str) -> None:
    """Connect to a port of a sandbox: binary frames are its bytes, a text frame is the end of one direction."""
    house = house_of(websocket)
    live, number = sandbox_of(websocket, caller, sandbox_id), port_of(port)
    wire = Socket(websocket)
    with house.connections.open(OpenConnection(sandbox_id, caller.tenant, caller.key, wire.end)):
        stream = await connect(house, live, number)
        try:
            await wire.accept()
            client_ended = asyncio.Event()
            ending = await wire.run(
                _to_port(wire, stream, client_ended),
                _to_client(wire, stream, client_ended),
                is_allowed=lambda: None if house.keys.is_valid(caller) else KEY_GONE,
            )
        except BaseException:
            stream.abort("the service ends")
            raise
        close_soon(stream) if ending is ENDED else stream.abort("the client has left")
        await wire.close(ending)


async def _to_port(wire: Socket, stream: PortStream, client_ended: asyncio.Event) -> Ending | None:
    """Pass on what the client sends, and go on to look whether it is there after it has ended its direction."""
    while (message := await wire.receive()) is not None:
        if client_ended.is_set() or (isinstance(message, str) and message.replace(" ", "") != END.replace(" ", "")):
            return BAD_CONTROL
        try:
            if isinstance(message, str):
                client_ended.set()
                stream.writer.write_eof()
            else:
                stream.writer.write(message)
                await stream.writer.drain()
        except OSError as error:
            return _cut(error)
    return None


async def _to_client(wire: Socket, stream: PortStream, client_ended: asyncio.Event) -> Ending:
    """Pass on what comes from the sandbox; return when both directions have ended."""
    while True:
        try:
            data = await stream.reader.read(READ_BYTES)
        except OSError as error:
            return _cut(error)
        await wire.send(data or END)
        if not data:
            await client_ended.wait()
            return ENDED


def _cut(error: OSError) -> Ending:
    return Ending(CUT, reason_of(f"It was cut in the sandbox: {error}"))
