"""Where schemathesis is told more than the document says: five overrides, each with its reason. It loads them as its hooks."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st

from tests.openapi.things import Things

OVERRIDES = {
    "real ids": "An id that fits its pattern is that of a thing which exists: nothing can be said of random ones but 404.",
    "bounds": "What a request waits for is cut to half a second, and what it creates to a few sandboxes, deleted at once.",
    "addresses": "Each request comes from an address of its own: those without a key would lock all others out.",
    "envelopes": "An operation answers arguments that do not fit with 200 and an envelope, as it does everywhere in Gamebox.",
    "meaning": "Data of the right form may mean nothing: limits that exclude each other, a range past the end, a key used before.",
}
SECONDS, LIFE_SECONDS = 0.5, 600
MOST_CREATIONS = 4
MOST_SAID = 4096
# Statuses of the override "meaning", and the codes which say that it was the form after all.
OF_MEANING = ["2xx", "401", "403", "404", "409", "410", "413", "416", "422", "503"]
_OF_FORM = ("invalid_json", "invalid_body", "invalid_query", "invalid_request")
# Names of hosts and the like; and 1.0, which a JSON schema counts as an integer.
_OF_RULES = ("Value error", "Input should be a valid integer")
_IDS = {
    "sandbox_id": re.compile("[a-z][a-z0-9]{19}"),
    "tenant_id": re.compile("[a-z0-9][a-z0-9_-]{0,62}"),
    "request_id": re.compile("[A-Za-z0-9._-]{1,64}"),
    "key_id": re.compile("k[0-9a-f]{16}"),
}
_NEW = {"X-Request-Id": re.compile("[A-Za-z0-9._-]{1,64}"), "Idempotency-Key": re.compile("[!-~]{1,200}")}
_WAITS = ("timeout_seconds", "wait_seconds", "cpu_seconds")

things = Things(os.environ["GAMEBOX_URL"], os.environ["GAMEBOX_API_KEY"], os.environ["GAMEBOX_TESTED_IMAGE"])
_log = Path(os.environ["GAMEBOX_TESTED_LOG"])
_random = random.Random(0)
_carried_out: set[str] = set()
_creations = itertools.count()


def configuration() -> str:
    """Return what of the overrides is configuration."""
    return f"""
phases.examples.fill-missing = true
[checks.positive_data_acceptance]
expected-statuses = {json.dumps(OF_MEANING)}
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503", "507"]
[checks.negative_data_rejection]
expected-statuses = ["4xx", "5xx"]
[[operations]]
include-tag = "operations"
checks.negative_data_rejection.expected-statuses = ["200", "4xx", "5xx"]
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
    if fits["sandbox_id"]:
        given["sandbox_id"] = things.sandbox_for(name)
    if fits["tenant_id"]:
        given["tenant_id"] = things.tenant_for(name)
    for header, pattern in _NEW.items():  # one that was not used yet
        if header in case.headers and pattern.fullmatch(str(case.headers[header])):
            case.headers[header] = f"tested-{_random.getrandbits(64)}"
    if fits["key_id"]:  # it knows those of answers, too, and would revoke its own
        given["key_id"] = things.key(given.get("tenant_id"))
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


_PREPARED: dict[str, Callable[[Any], None]] = {
    "GET /v1/sandboxes/{sandbox_id}/requests/{request_id}": _answered,
    "DELETE /v1/sandboxes/{sandbox_id}/requests/{request_id}": _under_way,
    "GET /v1/sandboxes/{sandbox_id}/files": _a_file,
    "GET /v1/sandboxes/{sandbox_id}/trees": _a_folder,
    "GET /v1/sandboxes/{sandbox_id}/checkpoints": _a_checkpoint,
    "GET /v1/sandboxes/{sandbox_id}/events": _from_now,
    "GET /v1/events": _from_now,
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
    life = body.get("time_to_live_seconds")
    if case.method.upper() == "PATCH" and isinstance(life, int | float) and 0 < life < LIFE_SECONDS:
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
        log.write(json.dumps([name, response.status_code, said]) + "\n")
    if response.status_code == 201 and case.operation.path in ("/v1/sandboxes", "/v1/sandboxes/{sandbox_id}/fork"):
        data = response.json()
        for each in data.get("items", [data]):
            things.delete(each["id"])


@schemathesis.check
def envelopes_say_what_does_not_fit(context: Any, response: Any, case: Any) -> None:
    """Let the override "envelopes" hide nothing: an envelope says what it did, and a failure has a code and a hint."""
    if response.status_code == 200 and case.operation.tags == ["operations"] and "json" in _type(response):
        envelope = response.json()
        assert "items" in envelope or envelope["tool_executed"] or (envelope["code"] and envelope["error"]), envelope


@schemathesis.check
def only_meaning_is_refused(context: Any, response: Any, case: Any) -> None:
    """Let the override "meaning" hide nothing: data of the documented form is not refused for its form."""
    if case.meta is None or not case.meta.generation.mode.is_positive or "problem" not in _type(response):
        return
    problem = response.json()
    about_cursor = "cursor" in problem["detail"]  # it is opaque: no form can be documented
    of_rules = any(each["problem"].startswith(_OF_RULES) for each in problem.get("problems", ()))
    assert problem["code"] not in _OF_FORM or about_cursor or of_rules, problem


@schemathesis.check
def problems_have_words(context: Any, response: Any, case: Any) -> None:
    """See that each problem has a code, a sentence and a hint."""
    if response.status_code >= 400 and case.method.upper() != "HEAD":
        problem = response.json()
        assert problem["code"], problem
        assert problem["detail"], problem
        assert problem["hint"], problem


def _type(response: Any) -> str:
    return str(next(iter(response.headers.get("content-type") or [""])))
