"""MCP over HTTP with the official client: sessions own sandboxes of their tenant, and keys decide as everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE
from tests.integration.service.api import Api
from tests.servers.gamebox_service import ServiceProcess

pytestmark = pytest.mark.engine
OWN = f"?image={IMAGE}&memory_bytes=67108864"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@contextlib.asynccontextmanager
async def connected(service: ServiceProcess, query: str, key: str | None = None, mode: Any = "auto") -> AsyncIterator[Client]:
    """A client of the service with a key, the first one unless another is given."""
    headers = {"Authorization": f"Bearer {key or service.key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(f"{service.url}/mcp{query}", http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client: Client, tool: str, **args: Any) -> dict[str, Any]:
    """Call a tool; return the envelope."""
    found: dict[str, Any] = (await client.call_tool(tool, args)).structured_content
    return found


def key_of(api: Api, scope: str) -> str:
    """Make a key."""
    return str(api.call("POST", "/keys", {"scope": scope}, status=201)["key"])


def begin(api: Api, query: str = OWN, **headers: str) -> httpx.Response:
    """Begin a session."""
    return api.http.post(f"/mcp{query}", json=HELLO, headers={**ACCEPT, **headers})


def test_a_session_has_a_sandbox_of_its_own_which_ends_with_it(service: ServiceProcess, api: Api) -> None:
    async def main() -> str:
        async with connected(service, f"{OWN}&tools=run,write,forward") as client:
            assert not mine(api), "it is created by the first call"
            data = await call(client, "run", command="echo a; sleep 0.1")
            assert data["result"]["output"] == "a\n"
            (ident,) = mine(api)
            seen: list[str | None] = []

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                seen.append(message)
                if message == "first":
                    await asyncio.to_thread(api.call, "POST", f"/sandboxes/{ident}/write", {"path": "go", "content": ""})

            waits = {"command": "echo first; until [ -e go ]; do sleep 0.05; done; rm go"}
            await client.call_tool("run", waits, progress_callback=progress)
            assert "first" in seen
            await call(client, "write", path="a.txt", content="x\n")
            (about,) = (await client.read_resource("gamebox://sandbox")).contents
            assert json.loads(getattr(about, "text", ""))["id"] == ident
            assert "+x" in getattr((await client.read_resource("gamebox://changes.patch")).contents[0], "text", "")
            url = (await call(client, "forward", port=8000))["result"]["url"]
            assert f"//8000-{ident}.localhost:{service.port}/" in url
            under_way = asyncio.create_task(client.call_tool("run", {"command": "exec sleep 987.5"}))
            assert await asyncio.to_thread(eventually, lambda: api.under_way(ident))
            under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await under_way
            assert await asyncio.to_thread(eventually, lambda: not api.under_way(ident))
            shown = await call(client, "run", command="ps | grep 'sleep 987[.]5' || echo none", session=None)
            assert shown["result"]["output"] == "none\n"
            await asyncio.to_thread(api.call, "DELETE", f"/sandboxes/{ident}", status=204)
            lost = await call(client, "run", command="true")
            assert (lost["code"], "next call creates" in lost["hint"]) == ("sandbox_unavailable", True)
            assert (await call(client, "run", command="cat a.txt"))["result"]["exit_code"] == 1
            return mine(api)[0]

    ident = asyncio.run(main())
    assert eventually(lambda: ident not in mine(api))
    assert eventually(lambda: "mcp.run" in {each["action"] for each in api.call("GET", f"/audit?target={ident}")["items"]})


def mine(api: Api) -> list[str]:
    """Return the sandboxes that MCP sessions have created."""
    return [each["id"] for each in api.call("GET", "/sandboxes?metadata.made_by=mcp")["items"] if each["state"] == "running"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_existing_sandbox_is_used_and_stays(service: ServiceProcess, api: Api, sandbox: str, mode: str) -> None:
    async def main() -> None:
        async with connected(service, f"?sandbox={sandbox}", key_of(api, "use"), mode) as client:
            await call(client, "write", path=f"{mode}.txt", content="x")
            with pytest.raises(MCPError, match="There is no tool"):
                await call(client, "browse", url="http://127.0.0.1/")

    asyncio.run(main())
    assert api.run(sandbox, f"cat {mode}.txt")["result"]["output"] == "x"


def test_sandboxes_and_sessions_of_others_do_not_exist(service: ServiceProcess, api: Api, sandbox: str) -> None:
    api.call("POST", "/tenants", {"id": "other"}, status=201)
    key = str(api.call("POST", "/tenants/other/keys", {"scope": "admin"}, status=201)["key"])
    session = begin(api).headers["mcp-session-id"]
    with Api(service, key) as other:
        theirs, missing = begin(other, f"?sandbox={sandbox}"), begin(other, f"?sandbox={'c' * 20}")
        assert (theirs.status_code, theirs.json()["code"]) == (404, "sandbox_not_found")
        assert theirs.json()["detail"].replace(sandbox, "") == missing.json()["detail"].replace("c" * 20, "")
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        for ident in (session, "0" * 32):
            answer = other.http.post("/mcp", json=listing, headers={**ACCEPT, "Mcp-Session-Id": ident})
            assert (answer.status_code, answer.json()["code"]) == (404, "request_not_found")
        assert api.http.post("/mcp", json=listing, headers={**ACCEPT, "Mcp-Session-Id": session}).status_code == 200
        assert api.http.delete("/mcp", headers={"Mcp-Session-Id": session}).status_code == 200
    api.call("DELETE", "/tenants/other", status=204)


def test_a_key_that_may_not_create_is_told_so_and_a_revoked_one_ends_its_session(service: ServiceProcess, api: Api) -> None:
    made = api.call("POST", "/keys", {"scope": "use"}, status=201)

    async def main() -> None:
        async with connected(service, OWN, made["key"]) as client:
            data = await call(client, "run", command="true")
            assert (data["code"], data["tool_executed"]) == ("forbidden", False)

    asyncio.run(main())
    with Api(service, made["key"]) as user:
        session = begin(user).headers["mcp-session-id"]
        with user.http.stream("GET", "/mcp", headers={"Accept": "text/event-stream", "Mcp-Session-Id": session}) as stream:
            assert stream.status_code == 200
            api.call("DELETE", f"/keys/{made['id']}", status=204)
            assert not [line for line in stream.iter_lines() if line and not line.startswith(":")], "the stream ends"
        assert begin(user).status_code == 401


def test_hostile_requests_are_refused(service: ServiceProcess, api: Api) -> None:
    for query, code in (
        ("?sandbox=../x", "sandbox_not_found"),
        ("?image=evil", "forbidden_by_operator"),
        ("?colour=red", "invalid_query"),
        ("?cpus=nan", "invalid_query"),
        ("?tools=upload", "invalid_configuration"),
        ("?ask=perhaps", "invalid_query"),
        (f"?sandbox={'a' * 20}&image=x", "invalid_query"),
    ):
        answer = begin(api, query)
        data = answer.json() if answer.headers["content-type"] == "application/problem+json" else {}
        assert data.get("code") == code or query == "?image=evil", (query, answer.text)
    assert begin(api, Origin="https://evil.example.com").json()["code"] == "origin_refused"
    assert begin(api, Host="evil.example.com").status_code == 421
    large = api.http.post("/mcp", content=b" " * (5 << 20), headers={**ACCEPT, "Content-Type": "application/json"})
    assert large.status_code == 413
    for body in (b"[]", b"{", b"null", b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', b"\xff"):
        answer = api.http.post("/mcp", content=body, headers={**ACCEPT, "Content-Type": "application/json"})
        assert answer.status_code in (400, 422), (body, answer.text)
