"""The OpenAPI document: its examples fit its schemas, and it has what clients that are made from it need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sandbox.operations import OPERATIONS
from sandbox.operations.base import Transfer
from sandbox.operations.wire import STATE_METHODS

DOCUMENT = json.loads((Path(__file__).parents[4] / "docs/openapi.json").read_text(encoding="utf-8"))
ROUTES = [(f"{method.upper()} {path}", each) for path, methods in DOCUMENT["paths"].items() for method, each in methods.items()]


def _fits(schema: Any, value: Any) -> None:
    validator = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    validator.validate(value)


def _examples() -> Iterator[Any]:
    for name, each in ROUTES:
        for parameter in each["parameters"]:
            if "example" in parameter:
                yield pytest.param(parameter["schema"], parameter["example"], id=f"{name} {parameter['name']}")
        contents = {**each.get("requestBody", {}).get("content", {})}
        for answer in each["responses"].values():
            contents |= answer.get("content", {})
        for media, content in contents.items():
            if "example" in content:
                yield pytest.param(content["schema"], content["example"], id=f"{name} {media}")


def test_every_example_fits() -> None:
    for each in _examples():
        _fits(*each.values)


def test_every_operation_has_its_fields_and_its_envelope() -> None:
    names = {name for name, kind in OPERATIONS.items() if not issubclass(kind, Transfer)} | set(STATE_METHODS)
    described = {each["operationId"]: each for name, each in ROUTES if each["tags"] == ["operations"]}
    assert names <= set(described)
    run = described["run"]["requestBody"]["content"]["application/json"]["schema"]
    _fits(run, {"command": "true", "timeout_seconds": "unlimited", "user": "root"})
    for wrong in ({"command": 5}, {"cmd": "true"}, {"command": "true", "rows": 0}):
        with pytest.raises(jsonschema.ValidationError):
            _fits(run, wrong)


def test_references_lead_somewhere_and_names_are_different() -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            for each in node.values():
                yield from references(each)
        elif isinstance(node, list):
            for each in node:
                yield from references(each)

    for reference in set(references(DOCUMENT)):
        place: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    idents = [each["operationId"] for _, each in ROUTES]
    assert len(idents) == len(set(idents))


def test_every_route_says_what_may_go_wrong() -> None:
    for name, each in ROUTES:
        needs_key = {"401", "403", "429"}
        assert {"500", "503"} <= set(each["responses"]), name
        assert needs_key <= set(each["responses"]) or not each["security"], name
        assert each["summary"], name
    for problem in DOCUMENT["components"]["responses"].values():
        assert list(problem["content"]) == ["application/problem+json"]
