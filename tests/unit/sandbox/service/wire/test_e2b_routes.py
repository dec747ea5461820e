"""Who may do what in the dialect of E2B: every route of it, with keys of every scope, and with tokens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from sandbox.service.http.route_table import all_routes
from sandbox.service.wire.e2b.envd.access import token_of
from sandbox.service.wire.e2b.unknown import METHODS, ROOTS
from tests.unit.sandbox.service.test_authorisation import LEVELS, OWN, TENANT, Service, running
from tests.unit.sandbox.service.test_authorisation import no_engine as no_engine

PAGE = (Path(__file__).parents[5] / "docs/e2b.md").read_text(encoding="utf-8")
ROWS = [
    (method, path, scope)
    for method, path, scope in re.findall(r"^\| `([A-Z]+) (\S+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
]
UNKNOWN = {(method, f"/{root}{rest}") for root in ROOTS for rest in ("", "/{rest:path}") for method in METHODS}


def test_the_table_has_every_route(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            routes = [each for each in all_routes(service.app) if isinstance(each, APIRoute) and each.tags == ["e2b"]]
            known = {(method, each.path) for each in routes for method in each.methods or ()}
            assert known == UNKNOWN | {(method, path) for method, path, _ in ROWS}
            for root in ROOTS:
                assert f"`/{root}`" in PAGE

    asyncio.run(work())


def test_each_scope_allows_what_the_page_says(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            wrong = []
            keyed = [(m, p, s) for m, p, s in ROWS if s not in ("token", "upload", "volume")]
            for method, path, needed in [*keyed, ("GET", "/teams/any/thing", "read")]:
                for scope in (None, *LEVELS):
                    answer = await _send(service, method, re.sub(r"\{.*?\}", OWN, path), scope)
                    if scope is None:
                        expected = {401, 429}
                    elif LEVELS.index(scope) < LEVELS.index(needed):
                        expected = {403}
                    else:
                        expected = {200, 201, 204, 400, 404, 501}
                    if answer not in expected:
                        wrong.append(f"{method} {path} with {scope}: {answer}")
            assert not wrong, "\n".join(wrong)

    asyncio.run(work())


async def _send(service: Service, method: str, path: str, scope: str | None) -> int:
    headers = {} if scope is None else {"X-API-Key": service.keys[f"{TENANT} {scope}"]}
    return (await service.ask(method, path, headers, b"{}")).status_code


def test_a_token_opens_one_sandbox_and_ends_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.service.keys.MOST_FAILURES", 10_000)

    async def work() -> None:
        async with running(tmp_path) as service:
            house, key = service.house, service.house.keys.of(TENANT)[0]
            token = token_of(house, OWN, key.id)
            foreign = house.keys.of("theirs")[0]
            wrong: tuple[dict[str, str], ...] = (
                {},
                {"X-API-Key": service.keys[f"{TENANT} admin"]},
                {"X-Access-Token": "x"},
                {"X-Access-Token": token[:-1] + ("A" if token[-1] != "A" else "B")},
                {"X-Access-Token": token.replace(OWN, "b" * 20)},
                {"X-Access-Token": token, "E2b-Sandbox-Id": "b" * 20, "E2b-Sandbox-Port": "49983"},
                {"X-Access-Token": token_of(house, OWN, foreign.id)},
            )
            for method, path, _ in [row for row in ROWS if row[2] == "token"]:
                target = path.format(method="Some")
                for headers in wrong:
                    answer = await service.ask(method, target, headers, b"{}")
                    assert answer.status_code == 401, (method, path, headers, answer.text)
                # The sandbox of the test has ended: whoever may use it is told so, and clients know it by these words.
                answer = await service.ask(method, target, {"X-Access-Token": token}, b"{}")
                assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found"), path
            await house.keys.revoke(TENANT, key.id)
            assert (await service.ask("GET", "/health", {"X-Access-Token": token})).status_code == 401

    asyncio.run(work())


def test_wrong_tokens_lock_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            token = token_of(service.house, OWN, service.house.keys.of(TENANT)[0].id)
            codes = [(await service.ask("GET", "/files?path=a&signature=v1_x", {})).status_code for _ in range(25)]
            assert codes[0] == 401
            assert codes[-1] == 429
            assert (await service.ask("GET", "/health", {"X-Access-Token": token})).status_code == 502

    asyncio.run(work())


def test_the_name_of_envd_has_nothing_else_of_the_service(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as service:
            host = {"Host": f"49983-{OWN}.localhost"}
            key = service.house.keys.of(TENANT)[0]
            token = {"X-Access-Token": token_of(service.house, OWN, key.id)}
            assert (await service.ask("GET", "/metrics", {**host, **token})).status_code == 502
            for path in ("/v1/whoami", "/sandboxes", "/healthz", "/openapi.json"):
                answer = await service.ask("GET", path, {**host, "X-API-Key": service.keys[f"{TENANT} admin"]})
                assert answer.status_code == 501, path
                assert path in answer.json()["message"]

    asyncio.run(work())
