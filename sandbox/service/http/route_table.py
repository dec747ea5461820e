"""The routes of the application, flat, and which methods a path has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

OPERATION_PATH = "/v1/sandboxes/{sandbox_id}/{operation}"


def routes_of(app: FastAPI) -> Iterator[APIRoute]:
    """Yield the routes of requests, in the order in which they are tried."""
    return (route for route in all_routes(app) if isinstance(route, APIRoute))


def all_routes(app: FastAPI) -> Iterator[APIRoute | APIWebSocketRoute]:
    """Yield the routes of requests and of WebSockets."""
    return _flat(app.routes)


def _flat(routes: Iterable[Any]) -> Iterator[APIRoute | APIWebSocketRoute]:
    for route in routes:
        if isinstance(route, APIRoute | APIWebSocketRoute):
            yield route
        else:  # what a router was included as
            yield from _flat(getattr(getattr(route, "original_router", route), "routes", ()))


def methods_of(app: FastAPI, path: str, operations: Iterable[str]) -> list[str]:
    """Return the methods of a path, with HEAD where GET is; that of all operations has its only for those there are."""
    found: set[str] = set()
    for route in routes_of(app):
        match = route.path_regex.match(path)
        if match is not None and match.groupdict().get("operation", None) in (None, *operations):
            found |= set(route.methods or ())
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
