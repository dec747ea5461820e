"""Requests that only an attacker at the host's end would make: each fails alone, and the guest goes on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import LocalEnvironment
from sandbox.guest.loop.reply_cache import ReplyCache
from sandbox.guest.loop.workers import Workers
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.records import END, STEP

WAIT: dict[str, Any] = {
    "id": None,
    "port": None,
    "host": None,
    "log": None,
    "literal": False,
    "file": None,
    "contains": None,
    "exit": False,
    "timeout_seconds": 1.0,
    "offset": 0,
}
SIZES: dict[str, Any] = {"path": ".", "sizes": [0, 0]}
NONSENSE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("wait_for", {}),
    ("wait_for", WAIT),
    ("wait_for", {**WAIT, "file": "x", "port": 1}),
    ("wait_for", {**WAIT, "log": "x"}),
    ("wait_for", {**WAIT, "exit": True}),
    ("wait_for", {**WAIT, "file": "x", "contains": "\ud800"}),
    ("resumed", {}),
    ("resumed", {"seconds": "nan"}),
    ("resumed", {"seconds": "inf"}),
    ("resumed", {"seconds": -1}),
    ("resumed", {"seconds": 1e300}),
    ("scan", {}),
    ("scan", {"roots": 5}),
    ("scan", {"roots": [7]}),
    ("scan", {"roots": ["x"]}),
    ("restore", {"path": "."}),
    ("restore", {"path": ".", "sizes": [0]}),
    ("restore", {"path": ".", "sizes": [0, "x"]}),
    ("restore", {**SIZES, "sessions": 5}),
    ("restore", {**SIZES, "sessions": {"a": 5}}),
)


_channels = itertools.count(1 << 30)  # a channel whose request is not answered yet may not be used again


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


@pytest.mark.parametrize(("operation", "args"), NONSENSE)
def test_arguments_that_no_host_gives(local: LocalEnvironment, operation: str, args: dict[str, Any]) -> None:
    call: dict[str, Any] = {"sink": lambda _: None} if operation == "scan" else {}
    if operation == "restore":
        call["body"] = (STEP.pack(0, END, 0, 0, 0, 0, 0, 0),)
    fields, _ = local._live().request(operation, args, timeout_seconds=60, **call)
    assert fields["fault"]["code"] == "invalid_arguments", fields
    assert local.run("echo on").unwrap().output == "on\n"


@pytest.mark.parametrize(
    "extra",
    [
        {"acknowledged": 5},
        {"acknowledged": [[]]},
        {"acknowledged": {"a": 1}},
        {"request_id": [1]},
        {"max_reply_bytes": "x"},
    ],
)
def test_fields_that_no_host_sends(local: LocalEnvironment, extra: dict[str, Any]) -> None:
    message = wire.pack_message({"operation": "list", "args": {}, **extra})
    local._live().sender.send(wire.Kind.REQUEST, next(_channels), message, time.monotonic() + 5)
    assert local.run("echo on").unwrap().output == "on\n"


def test_anything_but_a_list_of_ids_acknowledges_nothing() -> None:
    remembered = ReplyCache()
    assert remembered.begin("a", 1, "read", {}, b"") is True
    remembered.store(1, {"result": 1}, b"")
    for nonsense in (5, None, "a", {"a": 1}, [["a"], 5]):
        remembered.acknowledge(nonsense)
    assert remembered.begin("a", 2, "read", {}, b"") == ({"result": 1}, b"")
    remembered.acknowledge([[], "a"])
    assert remembered.begin("a", 3, "read", {}, b"") is True


def test_a_worker_outlives_a_job_that_raises() -> None:
    workers, went_on = Workers(2, None), threading.Event()

    def fail() -> None:
        raise ValueError("of this test")

    for _ in range(10):
        workers.submit(fail, watching=True)
        workers.submit(fail)
    workers.submit(went_on.set)
    assert went_on.wait(60)
