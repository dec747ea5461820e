"""Put the document together: paths from the application's routes, components from the types that are sent and answered."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sandbox.limits import Limits
from sandbox.service import house
from sandbox.service.http.limits import LIMITS
from sandbox.service.http.route_table import OPERATION_PATH, routes_of
from sandbox.service.wire.swerex.access import visitor

from . import answers, operations, swerex
from .described import HEADERS, PATHS, PROBLEM, Answer, Described, phrase
from .routes import ROUTES

SCOPES = {house.reader: "read", house.user: "use", house.manager: "manage", house.admin: "admin", house.operator: "operator"}
"""What the dependencies of routes stand for."""
SCOPES[visitor] = SCOPES[house.user]  # it takes tokens, too
_ROUTES = {**ROUTES, **swerex.ROUTES}
_REF = "#/components/schemas/{model}"
# Any route with a key may answer these, and any route at all the last ones.
_OF_KEYS, _OF_ALL = (401, 403, 429), (400, 500, 503)
_OF_BODIES = (408, 413, 422)
_WHY = {
    400: "The request is not valid HTTP, or its body is not JSON.",
    401: "No key, or a wrong one.",
    403: "The key has not the scope, or the operator does not allow it.",
    404: "There is no such thing, or it belongs to another tenant.",
    408: "The request did not come in time.",
    409: "Not possible in the present state.",
    410: "It is gone.",
    413: "The body is too large.",
    416: "The file has no such bytes.",
    422: "A field, parameter or header does not fit.",
    429: "Too much was asked for; see Retry-After.",
    500: "A bug of the service.",
    502: "The engine has failed.",
    503: "Not now; see Retry-After.",
    507: "There is no room.",
}
_FLOORS = {"memory_bytes": 32 << 20, "pids": 16, "open_files": 256}
_MOST = {"network_connections": 256}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the document. Routes that nothing is said of are left out."""
    paths: dict[str, dict[str, Any]] = {}
    kinds: set[type[BaseModel]] = set()
    for route in routes_of(app):
        for method in sorted(route.methods or ()):
            scope = next((SCOPES[each.call] for each in route.dependant.dependencies if each.call in SCOPES), None)
            tag = str(route.tags[0])
            if route.path == OPERATION_PATH:
                for (verb, path), (described, words) in operations.operation_routes().items():
                    paths.setdefault(path, {})[verb.lower()] = _operation(described, words, path, scope, tag, kinds)
            else:
                words = inspect.getdoc(route.endpoint) or ""
                if (said := _ROUTES.get((method, route.path))) is None:
                    continue  # a test finds it
                paths.setdefault(route.path, {})[method.lower()] = _operation(said, words, route.path, scope, tag, kinds)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Gamebox",
            "version": version("gamebox"),
            "summary": "Sandboxes for coding agents, over HTTP.",
            "description": "Streams, restarts and the meaning of every code are described in docs/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(str(route.tags[0]) for route in routes_of(app))],
        "paths": paths,
        "components": {
            "schemas": _schemas(kinds),
            "responses": {str(status): _problem(status) for status in _WHY},
            "headers": {
                name: {"description": words, "schema": dict(schema)} for name, (schema, words) in HEADERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key: e2b_ and 40 hexadecimal digits."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key."},
            },
        },
    }


def openapi_bytes(app: FastAPI) -> bytes:
    """Return the document as JSON; it is made when it is first asked for."""
    if (found := getattr(app.state, "openapi", None)) is None:
        found = app.state.openapi = json.dumps(openapi_document(app), ensure_ascii=False).encode()
    return bytes(found)


def _operation(
    described: Described, words: str, path: str, scope: str | None, tag: str, kinds: set[type[BaseModel]]
) -> dict[str, Any]:
    summary, _, rest = " ".join(words.split("\n\n")[0].split()).replace("``", "`").partition(". ")
    more = [rest, *(" ".join(part.split()).replace("``", "`") for part in words.split("\n\n")[1:])]
    needs = f"Needs a key of the scope {scope}." if scope else "Needs no key."
    found: dict[str, Any] = {
        "operationId": described.ident,
        "tags": [tag],
        "summary": summary.rstrip("."),
        "description": "\n\n".join(part for part in (*more, needs) if part),
        "security": [{"bearer": [scope]}, {"apiKey": [scope]}] if scope else [],
        "parameters": [*_path_parameters(path), *(each.data() for each in described.parameters)],
        "responses": {
            **{str(status): _answer(answer, kinds) for status, answer in described.answers.items()},
            **{
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in _problems(described, scope, has_parameters="{" in path or bool(described.parameters))
            },
        },
    }
    if described.body is not None:
        content: dict[str, Any] = {"schema": _schema(described.body, kinds)}
        if described.body_example is not None:
            content["example"] = described.body_example
        found["requestBody"] = {"required": described.body_required, "content": {described.body_media: content}}
    return found


def _problems(described: Described, scope: str | None, *, has_parameters: bool) -> list[int]:
    found = {*_OF_ALL, *described.problems, *(_OF_KEYS if scope else ())}
    found |= set(_OF_BODIES) if described.body is not None else {422} if has_parameters else set()
    return sorted(found - set(described.answers))


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name, (pattern, words, example) in PATHS.items():
        if f"{{{name}}}" in path:
            yield {
                "name": name,
                "in": "path",
                "required": True,
                "description": words,
                "schema": {"type": "string", "pattern": pattern},
                "example": example,
            }


def _answer(answer: Answer, kinds: set[type[BaseModel]]) -> dict[str, Any]:
    names = dict.fromkeys(("X-Request-Id", *answer.headers))
    found: dict[str, Any] = {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
    }
    content = {}
    for media, kind in answer.content.items():
        content[media] = {} if kind is None else {"schema": _schema(kind, kinds)}
        if media in answer.examples:
            content[media]["example"] = answer.examples[media]
    return {**found, "content": content} if content else found


def _problem(status: int) -> dict[str, Any]:
    names = ["X-Request-Id", *{401: ["WWW-Authenticate"], 416: ["Content-Range"], 429: ["Retry-After"]}.get(status, [])]
    return {
        "description": f"{phrase(status)}. {_WHY[status]}",
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(model=answers.ProblemDetails.__name__)}}},
    }


def _schema(kind: type[BaseModel] | Mapping[str, Any], kinds: set[type[BaseModel]]) -> dict[str, Any]:
    if isinstance(kind, type):
        kinds.add(kind)
        return {"$ref": _REF.format(model=kind.__name__)}
    return dict(kind)


def _schemas(kinds: set[type[BaseModel]]) -> dict[str, Any]:
    """Return the schemas of all types, by their names."""
    answered = {answers.ProblemDetails, answers.SuccessEnvelope, answers.FailureEnvelope, *operations.RESULTS.values()}
    answered |= {kind for kind in kinds if kind.__module__ == answers.__name__}
    modes: list[Any] = [(kind, "serialization") for kind in answered]
    modes += [(kind, "validation") for kind in kinds - answered]
    modes.sort(key=lambda each: each[0].__name__)
    _, found = models_json_schema(modes, ref_template=_REF)
    schemas: dict[str, Any] = {**_tidy(found["$defs"]), **operations.envelopes()}
    schemas["CreateSandbox"]["properties"]["limits"] = _limits()
    schemas["CreateTenant"]["properties"]["id"]["pattern"] = PATHS["tenant_id"][0]
    schemas["Run"]["properties"]["timeout_seconds"]["anyOf"].append({"const": "unlimited"})
    for schema in schemas.values():  # X-Request-Id is the documented place
        if schema.get("additionalProperties") is False:
            schema["properties"].pop("request_id", None)
    return dict(sorted(schemas.items()))


def _limits() -> dict[str, Any]:
    """Return the schema of the limits that a tenant may set."""
    hints = get_type_hints(Limits)
    properties: dict[str, Any] = {}
    for field in dataclasses.fields(Limits):
        if field.name not in LIMITS:
            continue
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        if field.name == "disk":
            properties[field.name] = {"enum": list(kinds)}
            continue
        kind = "integer" if int in kinds else "number"
        schema: dict[str, Any] = {"type": [kind, "null"] if type(None) in kinds else kind}
        schema["minimum" if field.name in _FLOORS else "exclusiveMinimum"] = _FLOORS.get(field.name, 0)
        schema["maximum"] = _MOST.get(field.name, (1 << 63) - 1)
        properties[field.name] = schema
    return {
        "type": "object",
        "description": "Limits that differ from the defaults.",
        "properties": properties,
        "additionalProperties": False,
    }


def _tidy(node: Any) -> Any:
    """Return the schema without titles, and without a form of bytes that JSON does not have."""
    if isinstance(node, list):
        return [_tidy(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: _tidy(each) for name, each in node.items() if not (name == "title" and isinstance(each, str))}
    if "patternProperties" in found:  # other names are refused
        found.setdefault("additionalProperties", False)
    if found.get("format") == "binary":
        del found["format"]
    for name in ("anyOf", "enum"):
        if isinstance(found.get(name), list):
            found[name] = [each for n, each in enumerate(found[name]) if each not in found[name][:n]]
    return found

