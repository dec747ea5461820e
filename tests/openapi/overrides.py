"""Where schemathesis is told more than the document says: five overrides, each with its reason. It loads them as its hooks."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import schemathesis
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import is_unexpected_http_status_case, negative_data_rejection

from sandbox.service.operators.facts import EXCEPTION_STATUS
from tests.openapi.things import Things

OVERRIDES = {
    "real ids": "An id that fits its pattern is that of a thing which exists: nothing can be said of random ones but 404.",
    "bounds": "What a request waits for is cut to half a second, and what it creates to a few sandboxes, deleted at once.",
    "addresses": "Each request comes from an address of its own: those without a key would lock all others out.",
    "envelopes": "An operation answers wrong arguments with 200 and an envelope, and takes 0 for false, as everywhere in Gamebox.",
    "meaning": "Data of the right form may mean nothing: limits that exclude each other, a range past the end, a key used before.",
}
SECONDS, LIFE_SECONDS = 0.5, 600
MOST_CREATIONS = 4
MOST_SAID = 4096
# The codes of the override "meaning": why data of the documented form may be refused. No other code is an answer to such data.
MEANING = {
    "forbidden_by_operator": "what the settings of this service do not allow",
    "sandbox_not_found": "an id of a sandbox that was deleted",
    "tenant_not_found": "an id of a tenant that was deleted",
    "request_not_found": "an id of a request that has ended",
    "checkpoint_not_found": "an id of a checkpoint",
    "path_not_found": "a path in the sandbox",
    "path_outside_roots": "a path in the sandbox",
    "path_invalid": "a path in the sandbox",
    "permission_denied": "a path in the sandbox",
    "not_a_regular_file": "a path in the sandbox",
    "not_a_directory": "a path in the sandbox",
    "secret_not_found": "a name of a secret",
    "key_not_found": "an id of a key",
    "route_not_found": "the code of a problem in a path",
    "tenant_exists": "an id that is taken",
    "output_gone": "an id of an event from long ago",
    "events_gone": "an id of an event from long ago",
    "range_not_satisfiable": "a range behind the end of a file",
    "image_not_found": "a name of an image",
    "invalid_configuration": "fields that exclude each other",
    "invalid_limits": "limits that exclude each other, or that this host does not have",
}
# What no schema says of a form: names of limits, texts with a grammar, and 1.0, which a schema takes for an integer.
RULES = (
    ("invalid_body", r"Value error, there is no limit '.*' that has a largest value"),
    ("invalid_body", r"Value error, .* is not a (rule|network) "),
    ("invalid_body", r"Value error, it has (a character that a variable cannot hold|fewer than \d+ characters without)"),
    ("invalid_body", r"Input should be a valid integer"),
    ("invalid_body", r"env and secrets both have"),
    ("invalid_query", r"cursor is "),
)
_DOCUMENT = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_text(encoding="utf-8"))
_BODIES = {
    each["operationId"]: each.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    for methods in _DOCUMENT["paths"].values()
    for each in methods.values()
}
_WORDS = {word: n % 2 == 0 for n, word in enumerate(("true", "false", "on", "off", "yes", "no", "1", "0", "t", "f", "y", "n"))}
# Of envelopes.
_OF_ARGUMENTS = ("invalid_arguments",)
_IDS = {
    "sandbox_id": re.compile("[a-z][a-z0-9]{19}"),
    "tenant_id": re.compile("[a-z0-9][a-z0-9_-]{0,62}"),
    "request_id": re.compile("[A-Za-z0-9._-]{1,64}"),
    "key_id": re.compile("k[0-9a-f]{16}"),
}
_NEW = {"X-Request-Id": re.compile("[A-Za-z0-9._-]{1,64}"), "Idempotency-Key": re.compile("[!-~]{1,200}")}
_MAKES = ("POST /v1/sandboxes", "POST /v1/sandboxes/{sandbox_id}/fork", "POST /v1/tenants")
_WAITS = ("timeout_seconds", "wait_seconds", "cpu_seconds", "timeout", "startup_timeout")

things = Things(os.environ["GAMEBOX_URL"], os.environ["GAMEBOX_API_KEY"], os.environ["GAMEBOX_TESTED_IMAGE"])
_log = Path(os.environ["GAMEBOX_TESTED_LOG"])
_random = random.Random(0)
_carried_out: set[str] = set()
_creations = itertools.count()
# The ids of what requests of schemathesis made: those that follow up on them mean just these.
_created: set[str] = set()


def configuration() -> str:
    """Return what of the overrides is configuration."""
    return """
phases.examples.fill-missing = true
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "4xx"]
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
[[operations]]
include-tag = "operations"
checks.negative_data_rejection.expected-statuses = ["200", "4xx"]
[[operations]]
include-tag = "swerex"
checks.positive_data_acceptance.expected-statuses = ["2xx", "4xx", "511"]
checks.negative_data_rejection.expected-statuses = ["4xx", "511"]
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "503", "507", "511"]
"""


# What is sent as a folder, and as a checkpoint.
schemathesis.openapi.media_type("application/x-tar", st.sampled_from([bytes(1024), things.tar(), b"no tar"]))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Apply the overrides on requests."""
    case.headers["X-Forwarded-For"] = f"10.{_random.randrange(256)}.{_random.randrange(256)}.{_random.randrange(1, 255)}"
    _real_ids(case)
    _bounds(case)


def _real_ids(case: Any) -> None:
    name = f"{case.method.upper()} {case.operation.path}"
    given: MutableMapping[str, Any] = case.path_parameters or {}
    fits = {each: isinstance(given.get(each), str) and pattern.fullmatch(given[each]) for each, pattern in _IDS.items()}
    follows_up = case.meta is not None and case.meta.phase.name.value == "stateful" and not fits["request_id"]
    if fits["sandbox_id"] and not (follows_up and given["sandbox_id"] in _created):
        given["sandbox_id"] = things.sandbox_for(name)
    if fits["tenant_id"] and not (follows_up and given["tenant_id"] in _created):
        given["tenant_id"] = things.tenant_for(name)
    for header, pattern in _NEW.items():  # one that was not used yet
        if header in case.headers and pattern.fullmatch(str(case.headers[header])):
            case.headers[header] = f"tested-{_random.getrandbits(64)}"
    if fits["key_id"]:  # it knows those of answers, too, and would revoke its own
        given["key_id"] = things.key(given["tenant_id"] if fits["tenant_id"] else None)
    if fits["request_id"] and name.endswith("/stdin"):  # the service waits for a request that was not begun
        given["request_id"] = things.reading()
    valid = all(fits[each] for each in fits if f"{{{each}}}" in case.operation.path)
    if name not in _carried_out and valid and (prepare := _PREPARED.get(name)) is not None:
        prepare(case)


def _answered(case: Any) -> None:
    case.path_parameters["request_id"] = things.answered()
    case.headers.pop("Last-Event-ID", None)


def _under_way(case: Any) -> None:
    case.path_parameters["request_id"] = things.under_way()


def _a_file(case: Any) -> None:
    case.query = {**(case.query or {}), "path": things.file()}
    case.headers.pop("Range", None)


def _a_folder(case: Any) -> None:
    case.query = {**(case.query or {}), "path": "."}


def _a_checkpoint(case: Any) -> None:
    case.query = {"id": things.checkpoint()}


def _from_now(case: Any) -> None:
    case.headers.pop("Last-Event-ID", None)


def _a_session(case: Any) -> None:
    things.session()


def _a_known_file(case: Any) -> None:
    case.body = {"path": things.file()}


_PREPARED: dict[str, Callable[[Any], None]] = {
    "GET /v1/sandboxes/{sandbox_id}/requests/{request_id}": _answered,
    "DELETE /v1/sandboxes/{sandbox_id}/requests/{request_id}": _under_way,
    "GET /v1/sandboxes/{sandbox_id}/files": _a_file,
    "GET /v1/sandboxes/{sandbox_id}/trees": _a_folder,
    "GET /v1/sandboxes/{sandbox_id}/checkpoints": _a_checkpoint,
    "GET /v1/sandboxes/{sandbox_id}/events": _from_now,
    "GET /v1/events": _from_now,
    "POST /wire/swerex/{sandbox_id}/run_in_session": _a_session,
    "POST /wire/swerex/{sandbox_id}/close_session": _a_session,
    "POST /wire/swerex/{sandbox_id}/read_file": _a_known_file,
}
"""What has to be there for the first request to a route to be carried out."""


def _bounds(case: Any) -> None:
    query = case.query or {}
    if case.operation.path.endswith("/events") and isinstance(query.get("seconds", SECONDS), int | float):
        case.query = {**query, "seconds": SECONDS / 5}
    if isinstance(case.body, dict):
        _bound_waits(case, case.body)
        _bound_creations(case, case.body)


def _bound_waits(case: Any, body: dict[str, Any]) -> None:
    for name in _WAITS:
        if isinstance(body.get(name), int | float) and body[name] > SECONDS:
            body[name] = SECONDS
    if case.operation.path.endswith(("/run", "/wait_for")) and body.get("timeout_seconds") in (None, "unlimited"):
        body["timeout_seconds"] = SECONDS
    if case.operation.path.endswith(("/execute", "/run_in_session")) and body.get("timeout") is None:
        body["timeout"] = SECONDS
    life = body.get("time_to_live_seconds")
    if isinstance(life, int | float) and 0 < life < LIFE_SECONDS:
        body["time_to_live_seconds"] = LIFE_SECONDS


def _bound_creations(case: Any, body: dict[str, Any]) -> None:
    if case.operation.path.endswith("/fork") and isinstance(body.get("count"), int) and body["count"] > 1:
        body["count"] = 1
    if case.operation.label == "POST /v1/sandboxes" and isinstance(body.get("image", ""), str):
        body["image"] = things.image if next(_creations) < MOST_CREATIONS else "gamebox/none"


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Note the answer, and delete what was created."""
    name = f"{case.method.upper()} {case.operation.path}"
    if response.status_code < 300:
        _carried_out.add(name)
    said = response.content[:MOST_SAID].decode(errors="replace") if response.status_code >= 500 else ""
    with _log.open("a") as log:
        log.write(json.dumps([name, response.status_code, said, *_kind(case, response)]) + "\n")
    if response.status_code == 201 and name in _MAKES:
        data = response.json()
        made = [each["id"] for each in data.get("items", [data])]
        _created.update(made)
        for each in made if name != "POST /v1/tenants" else ():
            things.delete_later(each)


def _kind(case: Any, response: Any) -> tuple[str, str, str]:
    """Return whether the data fit the document, the code of a problem, and its words."""
    mode = "?" if case.meta is None else "positive" if case.meta.generation.mode.is_positive else "negative"
    problem = response.json() if "problem" in _type(response) and response.content else {}
    return mode, problem.get("code", ""), problem.get("detail", "")[:300]


@schemathesis.check
def operations_refuse_what_does_not_fit(context: Any, response: Any, case: Any) -> None:
    """Let the override "envelopes" hide nothing: the only 200 to wrong data is a failure that says that they do not fit."""
    if case.operation.tags != ["operations"]:
        return
    envelope = _envelope(response)
    if envelope is not None and not envelope["tool_executed"]:
        assert envelope["code"], envelope
        assert envelope["error"], envelope
        if envelope["code"] in _OF_ARGUMENTS:
            return
    if _is_read_as_models_write(case):
        return
    strict = copy.copy(context)
    strict.config = SimpleNamespace(negative_data_rejection=SimpleNamespace(expected_statuses=["4xx"]))
    negative_data_rejection(strict, response, case)


@schemathesis.check
def only_meaning_is_refused(context: Any, response: Any, case: Any) -> None:
    """Let the override "meaning" hide nothing: data of the documented form is refused for reasons that are listed here."""
    if case.meta is None or not case.meta.generation.mode.is_positive or "problem" not in _type(response):
        return
    if is_unexpected_http_status_case(case):
        return
    problem = response.json()
    of_rules = any(problem["code"] == code and re.search(words, problem["detail"]) for code, words in RULES)
    assert problem["code"] in MEANING or of_rules, problem


@schemathesis.check
def problems_have_words(context: Any, response: Any, case: Any) -> None:
    """See that each problem has a code, a sentence and a hint."""
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        problem = response.json()
        if response.status_code == EXCEPTION_STATUS:  # of SWE-ReX's wire
            assert problem["swerexception"]["message"], problem
            assert problem["swerexception"]["class_path"].startswith(("builtins.", "swerex.exceptions.")), problem
            return
        assert problem["code"], problem
        assert problem["detail"], problem
        assert problem["hint"], problem


def _is_read_as_models_write(case: Any) -> bool:
    """Return whether the body fits if 0, "0" and "false" stand for false, "5" for 5, and 0 for the user "0".

    Models write so, and an operation reads it, wherever it comes from.
    """
    schema = _BODIES.get(case.operation.definition.raw.get("operationId"))
    if schema is None or not isinstance(case.body, dict):
        return False
    fits = jsonschema.Draft202012Validator({**schema, "components": _DOCUMENT["components"]})
    body = dict(case.body)
    wrong = {error.absolute_path[0] for error in fits.iter_errors(body) if error.absolute_path}
    for name in wrong:
        others = ({**body, name: other} for other in _other_spellings(name, body[name]))
        body = next((each for each in others if not any(name in e.absolute_path for e in fits.iter_errors(each))), body)
    return bool(wrong) and fits.is_valid(body)


def _other_spellings(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield int(value)
    elif isinstance(value, int | float):
        yield from [bool(value)] if value in (0, 1) else []
        yield from [str(value)] if name == "user" else []
    elif isinstance(value, str) and value.lower() in _WORDS:
        yield _WORDS[value.lower()]
    elif isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = float(value)
            yield int(number) if number.is_integer() else number


def _envelope(response: Any) -> dict[str, Any] | None:
    """Return the envelope that an operation has answered, None if it is none."""
    if response.status_code != 200:
        return None
    if "event-stream" in _type(response):
        *_, last = re.findall(r"^data: (.*)$", response.content.decode(), re.MULTILINE) or ["{}"]
        data = json.loads(last)
    else:
        data = response.json() if "json" in _type(response) else {}
    return data if "tool_executed" in data else None


def _type(response: Any) -> str:
    return str(next(iter(response.headers.get("content-type") or [""])))
