"""What a server in a sandbox answers is neither denied by the service nor an error of it: strangers can have it do so."""

from __future__ import annotations

import logging

import pytest

from sandbox.service.operators.facts import PORT_ROUTE, Facts
from sandbox.service.operators.observer import audit_with, log_request
from sandbox.service.ports.proxy import ignore_cut_responses
from sandbox.service.store.tables.audit import AuditEntry


def facts(route: str, status: int) -> Facts:
    return Facts(
        request_id="r1", method="GET", route=route, action="http.unknown", tenant="", key="", address="192.0.2.1", target="s1",
        status=status, code="", seconds=0.1, changes=False,
    )  # fmt: skip


def test_it_fills_no_audit() -> None:
    noted: list[AuditEntry] = []
    watch = audit_with(noted.append, operations=False)
    watch(facts(PORT_ROUTE, 401))
    assert not noted
    watch(facts("/v1/whoami", 401))
    assert [each.status for each in noted] == [401]


def test_it_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_request(facts(PORT_ROUTE, 500))
        log_request(facts("/v1/whoami", 500))
    assert [each.levelname for each in caplog.records] == ["INFO", "ERROR"]


def test_nor_is_what_it_breaks_off() -> None:
    def record(message: str) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, message, (), None)

    assert not ignore_cut_responses(record("ASGI callable returned without completing response."))
    assert ignore_cut_responses(record("Exception in ASGI application\n"))
