"""Who may do what: every route with keys of every scope, to things of the own tenant, of another one, and to none.

The routes are those of the application, the scopes those of docs/http.md. What belongs to another tenant is answered exactly as
what does not exist.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from sandbox.docker.spec import SandboxSpec
from sandbox.service.app import make_app, make_house
from sandbox.service.clock import now
from sandbox.service.connections import OpenConnection
from sandbox.service.house import House
from sandbox.service.http.route_table import all_routes
from sandbox.service.keys import DEFAULT_TENANT, Scope
from sandbox.service.openapi.document import openapi_document
from sandbox.service.settings import read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import requests as request_rows
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.sandboxes import SandboxRecord

from .requests_of_routes import RouteRequest, route_requests

PAGE = (Path(__file__).parents[4] / "docs/http.md").read_text(encoding="utf-8")
_TABLE = re.findall(r"^\| `([A-Z]+) (\S+)` \| (\S+) \|", PAGE, re.MULTILINE)
ROWS = {f"{method} {path}": scope.strip("`") for method, path, scope in _TABLE}
LEVELS = ("read", "use", "manage", "admin")
OWN, FOREIGN, MISSING = "a" * 20, "b" * 20, "c" * 20
TENANT, OTHER = "mine", "theirs"
# A problem that names the id, and the id of the request: the rest has to be the same.
# What is left of a rate goes down with each request.
_ANSWER_HEADERS = {"x-request-id", "date", "ratelimit", "x-ratelimit-remaining", "x-ratelimit-reset"}


@dataclass
class Service:
    """An application without an engine: what it is asked to do fails later than it is allowed."""

    app: FastAPI
    house: House
    keys: Mapping[str, str]

    async def send(self, request: RouteRequest, key: str | None, **ids: str) -> httpx.Response:
        """Send a request with these ids."""
        target = request.target.format(**{"port": "8000", "code": "no_space", "request_id": "r1", "secret_name": "TOKEN", **ids})
        headers = {} if key is None else {"X-API-Key": key}
        return await self.ask(request.method, target, headers, request.body)

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> httpx.Response:
        """Send any request."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.request(method, target, headers=dict(headers), content=body)

    async def websocket(self, path: str, key: str | None) -> str:
        """Ask for a WebSocket; return "accepted", or the code of the problem."""
        headers = [(b"host", b"localhost"), *([] if key is None else [(b"x-api-key", key.encode())])]
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "scheme": "ws",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "subprotocols": [],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }
        asked = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}])
        sent: list[dict[str, Any]] = []

        async def receive() -> Any:
            return next(asked, {"type": "websocket.disconnect", "code": 1000})

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        body = b"".join(each.get("body", b"") for each in sent if each["type"] == "websocket.http.response.body")
        return str(json.loads(body)["code"]) if body else "accepted"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Service]:
    database = Database(folder / "db")
    house = make_house(read_settings({"data": folder}), database)
    app = make_app(house)
    keys = {}
    for tenant in (DEFAULT_TENANT, TENANT, OTHER):
        for scope in Scope:
            keys[f"{tenant} {scope.name}"], _ = await house.keys.make(tenant, scope.name, scope)
    spec = SandboxSpec(image="gamebox/base").to_data()
    for ident, tenant in ((OWN, TENANT), (FOREIGN, OTHER)):
        over = SandboxRecord(
            id=ident,
            tenant=tenant,
            ident=f"gamebox-{ident[0] * 16}",
            state="lost",
            created_at=now(),
            ends_at=now() + 60,
            ended_at=now(),
            time_to_live_seconds=60,
            reason="removed",
            post_mortem="It ended.",
            spec=spec,
        )
        await database.call(lambda c, over=over: rows.insert(c, over))  # type: ignore[misc]
    async with app.router.lifespan_context(app):
        yield Service(app, house, keys)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr("sandbox.service.routes.operations.BEGIN_SECONDS", 0.01)


def test_the_table_has_every_route(tmp_path: Path) -> None:
    """A route that nobody has thought about fails here: it needs a row in docs/http.md, and a description."""
    database = Database(tmp_path / "db")
    app = make_app(make_house(read_settings({"data": tmp_path}), database))
    routes = [route for route in all_routes(app) if isinstance(route, APIRoute) and route.tags != ["e2b"]]  # test_e2b_routes
    known = {f"{method} {route.path}" for route in routes for method in route.methods or ()}
    sockets = {f"WS {route.path}" for route in all_routes(app) if not isinstance(route, APIRoute)}
    described = {_name(each) for each in route_requests(openapi_document(app))}
    database.close()
    assert known == described, "describe it in sandbox/service/openapi/routes.py"
    assert known | sockets == set(ROWS), "list it in docs/http.md"


def _name(request: RouteRequest) -> str:
    return request.name.removesuffix("/run") + "/{operation}" if request.name.endswith("{sandbox_id}/run") else request.name


def test_each_scope_allows_what_the_page_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            wrong = []
            for request in route_requests(openapi_document(service.app)):
                needed = ROWS[_name(request)]
                if request.scope != needed:
                    wrong.append(f"{request.name}: the document says {request.scope}, the page {needed}")
                for key in (None, "wrong", *service.keys):
                    token = None if key is None else service.keys.get(key, "e2b_" + "0" * 40)
                    victim = await _victim(service, request)
                    answer = await service.send(request, token, sandbox_id=OWN, **victim)
                    if (problem := _mismatch(answer, key, needed)) is not None:
                        wrong.append(f"{request.name} with {key}: {problem}")
            assert not wrong, "\n".join(wrong)

    asyncio.run(work())


async def _victim(service: Service, request: RouteRequest) -> dict[str, str]:
    """Return a key to revoke and a tenant to delete, so that those of the test stay."""
    if not {"key_id", "tenant_id"} & set(request.names):
        return {}
    tenant = TENANT
    if "tenant_id" in request.names:
        tenant = f"victim-{len(service.house.tenants.every())}"
        await service.house.tenants.create(tenant, "", {}, {})
    _, record = await service.house.keys.make(tenant, "victim", Scope.read)
    return {"key_id": record.id, "tenant_id": tenant}


def _mismatch(answer: httpx.Response, key: str | None, needed: str) -> str | None:
    code = answer.json().get("code") if "json" in answer.headers.get("content-type", "") else None
    if needed == "none":
        expected = code not in ("unauthorized", "forbidden")
    elif key in (None, "wrong"):
        expected = answer.status_code in (401, 429) and code in ("unauthorized", "locked_out")
    else:
        tenant, scope = str(key).split()
        wanted = "admin" if needed == "operator" else needed
        enough = LEVELS.index(scope) >= LEVELS.index(wanted) and (needed != "operator" or tenant == DEFAULT_TENANT)
        expected = code not in ("unauthorized", "forbidden") if enough else (answer.status_code, code) == (403, "forbidden")
    return None if expected else f"{answer.status_code} {code}"


def test_what_belongs_to_others_is_as_what_does_not_exist(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            admin = service.keys[f"{TENANT} admin"]
            _, foreign_key = await service.house.keys.make(OTHER, "foreign", Scope.read)
            for request in route_requests(openapi_document(service.app)):
                if not {"sandbox_id", "key_id"} & set(request.names) or request.scope == "operator":
                    continue
                foreign = {"sandbox_id": FOREIGN, "key_id": foreign_key.id}
                missing = {"sandbox_id": MISSING, "key_id": "k" + "0" * 16}
                answers = [await service.send(request, admin, **ids) for ids in (foreign, missing)]
                assert answers[0].status_code == 404, (request.name, answers[0].text)
                assert _told(answers[0], foreign) == _told(answers[1], missing), request.name
            assert service.house.keys.of(OTHER)
            assert service.house.fleet.find(OTHER, FOREIGN).record.state == "lost"

    asyncio.run(work())


def _told(answer: httpx.Response, ids: Mapping[str, str]) -> tuple[Any, ...]:
    text = answer.text.replace(answer.headers["x-request-id"], "REQUEST")
    for ident in ids.values():
        text = text.replace(ident, "ID")
    return answer.status_code, text, {name: value for name, value in answer.headers.items() if name not in _ANSWER_HEADERS}


def test_lists_and_keys_of_others_tell_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            key = {"X-API-Key": service.keys[f"{TENANT} admin"]}
            other = {"X-API-Key": service.keys[f"{OTHER} admin"]}
            for path in ("/v1/sandboxes", "/v1/keys", "/v1/audit", "/v1/whoami", "/v1/events?seconds=0"):
                text = (await service.ask("GET", path, key)).text
                assert OTHER not in text, path
                assert FOREIGN not in text, path
            await _finish_creation(service.house, OTHER, "same")
            same = {**key, "Idempotency-Key": "same"}
            answer = await service.ask("POST", "/v1/sandboxes", same, b"{}")
            assert answer.status_code in (502, 503), answer.text  # it was tried: there is no engine
            theirs = await service.ask("POST", "/v1/sandboxes", {**other, "Idempotency-Key": "same"}, b"{}")
            assert theirs.json()["code"] == "idempotency_key_reused"
            events = service.house.database
            for number in range(3):
                await events.call(lambda c, n=number: rows.add_event(c, OTHER, FOREIGN, now(), {"n": n}))  # type: ignore[misc]
            last = (await service.ask("GET", "/v1/events?seconds=0", {**key, "Last-Event-ID": "999"})).json()
            gone = await service.ask("GET", "/v1/events?seconds=0", {**key, "Last-Event-ID": "3"})
            mine = await events.call(lambda c: rows.last_event(c, TENANT))
            assert last["code"] == "events_gone"
            assert mine < 3
            assert gone.status_code == 410, "the number of somebody else's event"

    asyncio.run(work())


async def _finish_creation(house: House, tenant: str, key: str) -> None:
    def work(connection: Any) -> None:
        request_rows.begin_creation(connection, tenant, key, b"another", FOREIGN, now())
        request_rows.finish_creation(connection, FOREIGN, {"id": FOREIGN})

    await house.database.call(work)


def test_websockets_need_the_scope_and_the_sandbox(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            paths = [name.removeprefix("WS ").replace("{port}", "8000") for name in ROWS if name.startswith("WS ")]
            assert paths
            for path in paths:
                for key, ident, code in (
                    (None, OWN, "unauthorized"),
                    (f"{TENANT} read", OWN, "forbidden"),
                    (f"{TENANT} admin", FOREIGN, "sandbox_not_found"),
                    (f"{TENANT} admin", MISSING, "sandbox_not_found"),
                ):
                    token = None if key is None else service.keys[key]
                    assert await service.websocket(path.format(sandbox_id=ident), token) == code, (path, key)

    asyncio.run(work())


def test_open_connections_end_with_a_key_that_the_operator_revokes_and_with_its_tenant(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as service:
            operator = {"X-API-Key": service.keys[f"{DEFAULT_TENANT} admin"]}
            first, second = service.house.keys.of(OTHER)[:2]
            ended: list[str] = []
            opened = [OpenConnection(FOREIGN, "t", each.id, lambda _, who=each.id: ended.append(who)) for each in (first, second)]  # type: ignore[misc]
            with service.house.connections.open(opened[0]), service.house.connections.open(opened[1]):
                await service.ask("DELETE", f"/v1/tenants/{OTHER}/keys/{first.id}", operator)
                assert ended == [first.id]
                await service.house.tenants.create("third", "", {}, {})
                _, third = await service.house.keys.make("third", "", Scope.use)
                with service.house.connections.open(OpenConnection(FOREIGN, "t", third.id, lambda _: ended.append(third.id))):
                    assert (await service.ask("DELETE", "/v1/tenants/third", operator)).status_code == 204
                assert ended == [first.id, third.id]

    asyncio.run(main())
