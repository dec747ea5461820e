"""Who may use /mcp: keys of every scope, and what is said without the SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from sandbox.service.keys import Scope

from .test_authorisation import FOREIGN, MISSING, OWN, TENANT, Service, no_engine, running  # noqa: F401

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def ask(service: Service, method: str, key: str | None, target: str = "/mcp", **headers: str) -> tuple[int, str]:
    """Send a request; return its status and the code of the problem, or the kind of the answer."""
    own = {} if key is None else {"X-API-Key": service.keys.get(key, key)}
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    body = json.dumps(HELLO).encode() if method == "POST" else b""
    answer = await service.ask(method, target, {**own, **accept, **headers}, body)
    kind = answer.headers["content-type"].partition(";")[0]
    return answer.status_code, str(answer.json()["code"]) if kind == "application/problem+json" else kind


def test_sessions_need_a_key_that_may_use_sandboxes_and_belong_to_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            for method in ("POST", "GET", "DELETE"):
                assert await ask(service, method, None) == (401, "unauthorized")
                assert await ask(service, method, "e2b_" + "0" * 40) == (401, "unauthorized")
                assert await ask(service, method, f"{TENANT} read") == (403, "forbidden")
            for scope in ("use", "manage", "admin"):
                assert await ask(service, "POST", f"{TENANT} {scope}") == (200, "text/event-stream")
                assert await ask(service, "GET", f"{TENANT} {scope}") == (400, "invalid_request")
            assert await ask(service, "PATCH", f"{TENANT} admin") == (405, "method_not_allowed")
            for ident in (FOREIGN, MISSING):
                assert await ask(service, "POST", f"{TENANT} admin", f"/mcp?sandbox={ident}") == (404, "sandbox_not_found")
            assert await ask(service, "POST", f"{TENANT} use", f"/mcp?sandbox={OWN}") == (200, "text/event-stream")
            (ident, session), *_ = (await service.house.mcp.get())._by_id.items()
            named = {"Mcp-Session-Id": ident}
            assert session.caller.scope is Scope.use
            assert await ask(service, "DELETE", f"{TENANT} admin", **named) == (404, "request_not_found"), "another key"
            assert await ask(service, "DELETE", f"{TENANT} use", **named) == (200, "application/json")
            assert await ask(service, "DELETE", f"{TENANT} use", **named) == (404, "request_not_found")

    asyncio.run(work())


def test_a_tenant_has_so_many_sessions_and_a_service_without_the_sdk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.service.wire.mcp.sessions.MOST_OF_TENANT", 2)

    async def work() -> None:
        async with running(tmp_path) as service:
            answers = [await ask(service, "POST", f"{TENANT} use") for _ in range(3)]
            assert [status for status, _ in answers] == [200, 200, 429]
        other = tmp_path / "other"
        other.mkdir()
        monkeypatch.setitem(sys.modules, "sandbox.service.wire.mcp.sessions", None)
        async with running(other) as service:
            for _ in range(2):
                assert await ask(service, "POST", f"{TENANT} use") == (501, "route_not_found")

    asyncio.run(work())


def test_a_session_that_nobody_uses_ends_with_its_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandbox.service.wire.mcp import place, sessions

    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.05)
    ended: list[place.ServiceSandbox] = []

    async def close(self: place.ServiceSandbox) -> None:
        ended.append(self)

    monkeypatch.setattr(place.ServiceSandbox, "close", close)

    async def work() -> None:
        async with running(tmp_path) as service:
            assert (await ask(service, "POST", f"{TENANT} use"))[0] == 200
            known = (await service.house.mcp.get())._by_id
            ((ident, session),) = known.items()
            session.requests += 1  # as if a stream of it were open
            monkeypatch.setattr(sessions, "IDLE_SECONDS", 0.5)
            await asyncio.sleep(1)
            assert ident in known
            session.requests -= 1
            for _ in range(600):
                await asyncio.sleep(0.05)
                if ended:
                    break
            assert ended == [session.place]
            named = {"Mcp-Session-Id": ident}
            assert await ask(service, "POST", f"{TENANT} use", **named) == (404, "request_not_found")

    asyncio.run(work())
