"""The log: lines that machines and people read, nothing in them that is nobody's business, and nothing that waits for a reader."""

from __future__ import annotations

import io
import json
import logging
import os
import threading

import pytest

from sandbox.service.operators import logs
from sandbox.service.operators.facts import facts_of
from sandbox.service.operators.logs import JsonFormatter, LineHandler, TextFormatter, log_event, logging_to

KEY = "e2b_" + 40 * "a"
log = logging.getLogger("sandbox.service.test")


def written(form: logs.Format, level: logs.Level = "info", message: str = "it", **fields: object) -> str:
    stream = io.StringIO()
    with logging_to(stream, form, level):
        try:
            raise ValueError("the body of somebody")
        except ValueError:
            log.exception(message, extra={"fields": fields})
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            log.exception("disk")
    return stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_have_no_keys_no_bodies_and_no_second_line(form: logs.Format) -> None:
    text = written(form, message=f"a\nforged {KEY}", path=f"/x\n\x1b[31m{KEY}")
    assert len(text.splitlines()) == 2
    assert KEY not in text
    assert "somebody" not in text
    assert "ValueError" in text
    assert "No space left on device" in text
    assert "test_logs.py" in text
    assert "somebody" in written(form, "debug")


def test_a_line_of_json_has_the_fields_and_the_request() -> None:
    record = logging.LogRecord("sandbox.service", logging.INFO, "", 0, "it", None, None)
    token = logs.current_request.set({"request_id": "r1"})
    try:
        data = json.loads(JsonFormatter().format(record))
    finally:
        logs.current_request.reset(token)
    assert (data["level"], data["message"], data["request_id"]) == ("info", "it", "r1")
    assert "request_id" not in json.loads(JsonFormatter().format(record))
    record.fields = {"ms": 1.5, "target": "two words", "code": ""}
    assert TextFormatter().format(record).endswith('INFO    it ms=1.5 target="two words"')


def test_nobody_waits_for_whoever_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    monkeypatch.setattr(logs, "CLOSE_SECONDS", 5.0)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, logging_to(stream, "json", "info"):
        for n in range(3000):
            log_event(log, logging.INFO, "x" * 1000, n=n)
        assert any(isinstance(each, LineHandler) for each in logging.getLogger().handlers)
        found = bytearray()

        def read() -> None:
            while data := os.read(reading, 1 << 16):
                found.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
    reader.join()
    os.close(reading)
    lines = [json.loads(line) for line in found.splitlines()]
    dropped = sum(each["count"] for each in lines if each["message"] == "lines of the log were dropped")
    assert dropped > 1000
    assert dropped + sum("n" in each for each in lines) == 3000


def test_what_callers_send_is_neither_a_route_nor_a_key() -> None:
    scope = {"type": "http", "method": "BREW", "path_params": {"sandbox_id": KEY + "x" * 500}, "client": ("192.0.2.1", 1)}
    facts = facts_of(scope, 404, "", 0.1)
    assert (facts.method, facts.route, facts.action, facts.address) == ("OTHER", "none", "http.unknown", "192.0.2.1")
    assert KEY not in facts.target
    assert len(facts.target) <= 200
