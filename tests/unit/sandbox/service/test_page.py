"""docs/http.md and docs/how-to/run-a-service.md say what the code says: routes with their scopes, codes, settings, examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute

from sandbox.errors import ErrorCode
from sandbox.service import house
from sandbox.service.app import make_app, make_house
from sandbox.service.http.bodies import CreateSandbox, read_body
from sandbox.service.http.problems import ProblemCode
from sandbox.service.openapi.meanings import OF_HTTP, OF_SANDBOXES
from sandbox.service.operators.audit import entry_data
from sandbox.service.settings import Settings, read_settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables.audit import COLUMNS, AuditEntry
from sandbox.service.wire.swerex.access import visitor

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/http.md").read_text(encoding="utf-8")
RECIPE = (ROOT / "docs/how-to/run-a-service.md").read_text(encoding="utf-8")
CODES = (ROOT / "docs/reference/codes.md").read_text(encoding="utf-8")
SCOPES = {house.reader: "read", house.user: "use", house.manager: "manage", house.admin: "admin", house.operator: "operator"}
SCOPES[visitor] = "use"  # or a token, which has no more


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[APIRoute | APIWebSocketRoute]]:
    folder = tmp_path_factory.mktemp("service")
    database = Database(folder / "db")
    app = make_app(make_house(read_settings({"data": folder}), database))
    yield [route for route in _flat(app.routes) if isinstance(route, APIRoute | APIWebSocketRoute)]
    database.close()


def _flat(routes: object) -> Iterator[object]:
    for route in routes:  # type: ignore[attr-defined]
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        if isinstance(route, APIRoute | APIWebSocketRoute) or not inner:
            yield route
        else:
            yield from _flat(inner)


def test_every_route_is_on_the_page_with_its_scope(routes: list[APIRoute | APIWebSocketRoute]) -> None:
    rows = re.findall(r"^\| `([A-Z]+) (\S+)` \| (\S+) \|", PAGE, re.MULTILINE)
    shown = {(method, path): scope.strip("`") for method, path, scope in rows}
    known: dict[tuple[str, str], str] = {}
    for route in routes:
        if getattr(route, "tags", None) == ["e2b"]:  # those are in docs/e2b.md
            continue
        needed = [SCOPES[each.call] for each in route.dependant.dependencies if each.call in SCOPES]
        known |= {(method, route.path): needed[0] if needed else "none" for method in getattr(route, "methods", None) or ("WS",)}
    assert known == shown
    assert [path for (_, path), scope in known.items() if scope == "none"] == [
        *("/healthz", "/readyz", "/openapi.json", "/problems/{code}")
    ]


def test_every_code_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \d+(?:, \d+)* \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(code.value for code in ProblemCode)


def test_the_type_of_each_problem_leads_to_what_the_pages_say_of_its_code() -> None:
    of_http = dict(re.findall(r"^\| `(\w+)` \| \d+(?:, \d+)* \| (.*) \|$", PAGE, re.MULTILINE))
    of_sandboxes = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", CODES, re.MULTILINE))
    assert {code: _plain(text) for code, text in of_http.items()} == OF_HTTP
    assert {code.value: _plain(of_sandboxes[code.value]) for code in ErrorCode} == OF_SANDBOXES


def _plain(text: str) -> str:
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text).replace("`", "")


def test_the_examples_are_valid(tmp_path: Path) -> None:
    created, audit, problem = map(json.loads, re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    body = read_body(CreateSandbox, json.dumps(created).encode())
    assert set(created) == set(CreateSandbox.model_fields)
    settings = read_settings({"data": tmp_path})
    body.spec(settings, settings.ceiling)
    assert set(audit["items"][0]) == set(entry_data(0, AuditEntry(**dict.fromkeys(COLUMNS, 0))))  # type: ignore[arg-type]
    assert set(problem) == {"type", "title", "status", "detail", "code", "hint", "retryable", "request_id"}
    data = re.findall(r"^data: (.*)$", PAGE, re.MULTILINE)
    assert len(data) == 3
    assert all(isinstance(json.loads(each), dict) for each in data)


def test_every_setting_is_in_the_recipe() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", RECIPE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set(Settings.model_fields)
