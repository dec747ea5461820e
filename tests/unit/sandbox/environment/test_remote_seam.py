"""An environment without a Backend: a client of a remote service implements ``perform``, and has every operation by that."""

from __future__ import annotations

import asyncio
from typing import Any

from agent.tools import sandbox_tools
from sandbox import AsyncEnvironment, Environment
from sandbox import operations as op
from sandbox.envelope import Envelope, Success
from sandbox.pipe.watching import Watch


class Remote(Environment):
    """Sends nothing anywhere: it notes the requests and answers them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[op.Request] = []

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        self.requests.append(request)
        return Success(op.WriteResult(path="a.txt", size_bytes=2, created=True))


def test_a_client_that_performs_requests_has_methods_coroutines_and_actions() -> None:
    remote = Remote()
    assert remote.write("a.txt", "hi").unwrap().path == "a.txt"
    assert asyncio.run(_written(remote)) == "a.txt"
    (write,) = [action for action in sandbox_tools() if action.operation == "write"]
    assert remote.execute_action(write, {"path": "a.txt", "content": "hi"})["result"]["path"] == "a.txt"
    assert [type(request) for request in remote.requests] == [op.Write] * 3


async def _written(remote: Remote) -> str:
    async with AsyncEnvironment(remote) as env:
        written = await env.perform(op.Write(path="a.txt", content="hi", request_id=None))
        return str(written.unwrap().path)
