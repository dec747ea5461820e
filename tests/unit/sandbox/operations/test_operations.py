"""Requests, results and schemas: what a model is told, and what it is answered."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from sandbox.environment.methods import OperationMethods
from sandbox.limits import Limits
from sandbox.operations import (
    OPERATIONS,
    BrowseResult,
    Read,
    ReadResult,
    Request,
    Result,
    Run,
    RunResult,
    UsageResult,
    schema_of,
)

NAMES = [
    "read", "write", "edit", "list", "stat", "list_details",
    "search", "make_dir", "move", "delete", "upload", "download", "run", "logs", "kill",
    "open_session", "sessions", "end_session", "send", "resize", "screen", "wait_for", "processes", "browse",
    "browse_interact", "screenshot", "usage",
]  # fmt: skip
MINIMAL: dict[str, dict[str, Any]] = {
    "read": {"path": "a"}, "write": {"path": "a", "content": ""}, "edit": {"path": "a", "old_text": "x", "new_text": ""},
    "list": {}, "search": {"pattern": "x"}, "make_dir": {"path": "a"}, "move": {"source": "a", "target": "b"},
    "delete": {"path": "a"}, "run": {}, "logs": {"id": "c1"}, "kill": {"id": "c1"}, "end_session": {"session": "s"},
    "send": {"id": "c1"}, "resize": {"id": "c1", "rows": 5, "cols": 9}, "screen": {"id": "c1"}, "wait_for": {}, "processes": {},
    "upload": {"path": "a"}, "download": {"path": "a"}, "browse": {"url": "http://127.0.0.1/"},
    "browse_interact": {"steps": [{"action": "back"}]}, "screenshot": {}, "usage": {},
    "stat": {"path": "a"}, "list_details": {"path": "a"}, "open_session": {"session": "s"}, "sessions": {},
}  # fmt: skip


def test_the_operations() -> None:
    assert list(OPERATIONS) == NAMES
    for name, kind in OPERATIONS.items():
        assert kind.operation == name
        assert issubclass(kind.result, Result)
        assert callable(getattr(OperationMethods, name))


@pytest.mark.parametrize("name", NAMES)
def test_schemas(name: str) -> None:
    schema = schema_of(OPERATIONS[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert sorted(schema["required"]) == sorted(MINIMAL[name])
    assert "title" not in schema
    for field, described in schema["properties"].items():
        assert "title" not in described
        if name not in ("upload", "download"):  # not for models
            assert described.get("description"), field
    schema.clear()
    assert schema_of(OPERATIONS[name]), "each caller has a schema of its own"


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_and_the_request_agree(name: str) -> None:
    kind, schema = OPERATIONS[name], schema_of(OPERATIONS[name])
    kind.model_validate(MINIMAL[name])
    jsonschema.validate(MINIMAL[name], schema)
    wrong: list[dict[str, Any]] = [{**MINIMAL[name], "surplus": 1}]
    wrong += [{k: v for k, v in MINIMAL[name].items() if k != missing} for missing in MINIMAL[name]]
    wrong += [{**MINIMAL[name], field: ["no", {}]} for field in schema["properties"] if field != "argv"]
    for args in wrong:
        with pytest.raises(ValidationError):
            kind.model_validate(args)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(args, schema)


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_are_for_models(name: str) -> None:
    text = OPERATIONS[name].__doc__ or ""
    assert text.splitlines()[0].endswith((".", ":")) or len(text.splitlines()) > 1
    assert "``" not in text


def test_requests_are_values() -> None:
    request = Read.model_validate({"path": "a"})
    with pytest.raises(ValidationError):
        request.path = "b"
    assert request == Read.model_validate({"path": "a"})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": "true"}, None),
        ({"argv": ("true",)}, None),
        ({"command": "true", "env": {"A": "\udcff"}, "stdin": "\udcff"}, None),
        ({}, "give either command or argv"),
        ({"command": "a", "argv": ("b",)}, "give either command or argv"),
        ({"command": "a\0"}, "NUL"),
        ({"argv": ("a", "b\0")}, "NUL"),
        ({"command": "a", "cwd": "\0"}, "NUL"),
        ({"command": "a", "env": {"A": "\0"}}, "NUL"),
        ({"command": "a", "env": {"": "x"}}, "'' is not a valid name"),
        ({"command": "a", "env": {"A=B": "x"}}, "'A=B' is not a valid name"),
        ({"command": "\ud800"}, "not valid Unicode"),
        ({"command": "a", "stdin": "\ud800"}, "stdin is not valid Unicode"),
    ],
)
def test_what_a_run_cannot_be(fields: dict[str, Any], problem: str | None) -> None:
    found = Run.model_validate(fields).problem()
    assert found is None if problem is None else problem in str(found)


def test_results_refuse_what_is_not_theirs() -> None:
    with pytest.raises(ValidationError):
        ReadResult.model_validate({"path": "a", "__class__": "x"})
    with pytest.raises(ValidationError):
        BrowseResult(url="u", status=42)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RunResult(id="c1", running=True), "[running in the background with id c1]"),
        (RunResult(signal="SIGKILL", oom_killed=True), "[no output; killed by SIGKILL, out of memory]"),
        (RunResult(exit_code=0, output="a\n\n"), "a\n[exit code 0]"),
        (
            RunResult(exit_code=0, output="a\n[... 8 bytes cut ...]\n", truncated=True, output_bytes=9, spill_path="/s"),
            "a\n[... 8 bytes are left out here. All of the output is in /s: read or search that file. ...]\n[exit code 0]",
        ),
        (
            RunResult(exit_code=0, truncated=True, output_bytes=9, spill_path="/s", spill_truncated=True),
            "[... 9 bytes are left out here. The first part of the output is in /s: read or search that file. ...]\n[exit code 0]",
        ),
        (
            RunResult(exit_code=0, truncated=True, output_bytes=9),
            "[... 9 bytes are left out here. Run it again with less output. ...]\n[exit code 0]",
        ),
        (RunResult(output="so far"), "so far"),
        (RunResult(exit_code=0), "[no output; exit code 0]"),
        (RunResult(signal="SIGKILL"), "[no output; killed by SIGKILL]"),
        (RunResult(exit_code=0, output="\n", output_bytes=1), "[exit code 0]"),
    ],
)
def test_what_a_model_is_shown_of_a_run(result: RunResult, text: str) -> None:
    assert result.to_text() == text


@pytest.mark.parametrize("name", NAMES)
def test_every_result_is_json(name: str) -> None:
    kind: type[Request] = OPERATIONS[name]
    needed = {field: "exit" for field, info in kind.result.model_fields.items() if info.is_required()}
    result = kind.result.model_validate(needed)
    assert kind.result.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    "wrong",
    [{"memory_used_bytes": 10**400}, {"processes": -1}, {"running": ["x" * 65]}, {"running": ["c1"] * 65}, {"more": 1},
     {"places": [{"path": "/", "free_bytes": 1}]}, {"places": "x"}, {"lifetime_left_seconds": float("inf")}],
)  # fmt: skip
def test_usage_of_a_hostile_guest(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UsageResult.model_validate(wrong)


def test_usage_in_words() -> None:
    place = {"path": "/a\nb", "free_bytes": 1 << 20, "size_bytes": 3 << 20}
    usage = UsageResult.model_validate(
        {"memory_used_bytes": 3 << 20, "memory_limit_bytes": 2 << 20, "places": [place], "lifetime_left_seconds": 1e300,
         "processes": 20, "process_limit": 64, "running": ["c1", "c2"]}
    )  # fmt: skip
    assert usage.to_text().splitlines()[:3] == [
        "memory: 0 bytes of 2.0 MiB left", "/a?b: 1.0 MiB of 3.0 MiB left", "processes: 44 of 64 left",
    ]  # fmt: skip
    assert usage.to_text().splitlines()[-1] == "running: c1, c2"


def _floats() -> list[tuple[type[Request], str]]:
    every = [(each, name, field) for each in OPERATIONS.values() for name, field in each.model_fields.items()]
    return [(each, name) for each, name, field in every if "float" in str(field.annotation)]


@pytest.mark.parametrize("text", ["1e999", "-1e999", "NaN"])
def test_a_number_that_json_does_not_have_is_no_argument(text: str) -> None:
    assert (Run, "cpu_seconds") in _floats()
    for request, name in _floats():
        with pytest.raises(ValidationError) as caught:
            request.model_validate({name: json.loads(text)})
        assert (name,) in {each["loc"] for each in caught.value.errors()}, (request, name)


def test_a_run_that_may_be_sent_again_is_sent_as_earlier_versions_did() -> None:
    """A guest that an earlier version started compares it with the first one; what is None or False is left out of others."""
    short = Run.model_validate({"command": "true", "session": None}).prepare(Limits()).args
    again = Run.model_validate({"command": "true", "session": None, "request_id": "r1"}).prepare(Limits()).args
    left_out = dict.fromkeys(("argv", "cwd", "env", "session", "user", "wait_seconds"))
    left_out |= {"background": False, "pty": False, "needs_session": False, "rows": 24, "cols": 80}
    assert {name: value for name, value in again.items() if name not in short} == left_out
    assert short.items() <= again.items()


def test_a_run_is_sent_with_all_that_it_says() -> None:
    said = {"background": True, "needs_session": True, "cwd": "d", "env": {"A": ""}, "user": "0", "wait_seconds": 0.0}
    args = Run.model_validate({"argv": ["a", "b"], "pty": True, "session": "", **said}).prepare(Limits()).args
    assert said.items() <= args.items()
    assert (args["argv"], args["pty"], args["rows"], args["cols"], args["session"]) == (("a", "b"), True, 24, 80, "")
