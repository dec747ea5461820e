"""A valid request to each route of the service, as its OpenAPI document describes it: for tests that go through all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

# What stands for all operations: they share one route.
OPERATION = "run"
# No stream of the tests goes on.
QUERIES = {"seconds": "0"}


@dataclass(frozen=True)
class RouteRequest:
    """A request; ``target`` has the names of ids in braces. ``scope`` is that which the document says it needs."""

    method: str
    path: str
    scope: str
    target: str
    body: bytes = b""
    names: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """What it is called in a table."""
        return f"{self.method} {self.path}"


def route_requests(document: Mapping[str, Any]) -> Iterator[RouteRequest]:
    """Yield a request for each route of the document, one for all operations together."""
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            if each["tags"] == ["operations"] and "/requests" not in path and each["operationId"] != OPERATION:
                continue
            needed = [scope for item in each["security"] for scopes in item.values() for scope in scopes]
            given = {
                one["name"]: QUERIES.get(one["name"], one.get("example"))
                for one in each["parameters"]
                if one["in"] == "query" and (one["required"] or one["name"] in QUERIES)
            }
            body = b""
            if "requestBody" in each:
                (content,) = each["requestBody"]["content"].values()
                body = json.dumps(content["example"]).encode() if "example" in content else b""
            names = tuple(one["name"] for one in each["parameters"] if one["in"] == "path")
            query = f"?{urlencode(given)}" if given else ""
            yield RouteRequest(method.upper(), path, needed[0] if needed else "none", path + query, body, names)
