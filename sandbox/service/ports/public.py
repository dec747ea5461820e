"""The ports of sandboxes that everybody may reach, as the store and the sandboxes in memory have them."""

from __future__ import annotations

from sandbox.service.connections import Ending
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import House
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.store.tables import ports as rows

from .access import public_key

MOST_PORTS = 64
CLOSED = Ending(1008, "The port is private now.")


async def load_public_ports(house: House) -> None:
    """Read them from the store."""
    for sandbox, port in await house.database.call(rows.every):
        if (live := house.fleet.known(sandbox)) is not None:
            live.public_ports.add(port)


async def open_port(house: House, live: LiveSandbox, port: int) -> None:
    """Let everybody reach a port. Raises Problem if there are too many."""
    if port not in live.public_ports and len(live.public_ports) >= MOST_PORTS:
        raise Problem(
            409,
            ProblemCode.wrong_state,
            f"This sandbox already has {MOST_PORTS} public ports, the most that are allowed.",
            "Make one private: DELETE /v1/sandboxes/{id}/ports/{port}.",
        )
    sandbox = live.record.id
    await house.database.call(lambda connection: rows.insert(connection, sandbox, port))
    live.public_ports.add(port)


async def close_port(house: House, live: LiveSandbox, port: int) -> None:
    """Have a port be private, and cut those who came because it was not."""
    sandbox = live.record.id
    live.public_ports.discard(port)
    await house.database.call(lambda connection: rows.delete(connection, sandbox, port))
    house.connections.end(CLOSED, key=public_key(port), sandbox=sandbox)
