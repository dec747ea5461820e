"""What an operator sees of a service: its log, audit, numbers and traces; and a backup that is restored."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider

from sandbox import RemoteEnvironment
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE, OwnEngine
from tests.programs import run_gamebox
from tests.servers.gamebox_service import ServiceProcess
from tests.servers.otlp import Collector

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
SECRET = "value-of-a-variable"
BODY = "text-of-a-command"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def service(place: Path, collector: Collector) -> Iterator[ServiceProcess]:
    options = ("--log-format", "json", "--metrics-listen", "127.0.0.1:0")
    made = ServiceProcess(place / "data", *options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield made.start()
        made.stop()


@pytest.fixture(scope="module")
def sandbox(service: ServiceProcess, api: Api) -> Iterator[str]:
    ident = api.create(image=IMAGE, env={"TOKEN": SECRET})
    yield ident
    # The last test ends it; it may have run on another worker.
    httpx.delete(f"{service.url}/v1/sandboxes/{ident}", headers={"X-API-Key": service.key}, timeout=30)


def lines(service: ServiceProcess) -> list[dict[str, Any]]:
    """Return the log; every line is JSON."""
    return [json.loads(line) for line in (service.folder.parent / "service.log").read_text().splitlines()]


def logged(service: ServiceProcess, request_id: str) -> dict[str, Any]:
    found = eventually(lambda: [each for each in lines(service) if each.get("request_id") == request_id])
    assert len(found) == 1
    return dict(found[0])


def audited(api: Api, **wanted: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.call("GET", "/audit", params=wanted)["items"]
    return found


def test_the_log_has_a_line_for_each_request_and_nothing_of_what_was_sent(
    service: ServiceProcess, api: Api, sandbox: str
) -> None:
    api.run(sandbox, f"echo {BODY}; exit 3", request_id="of-log")
    line = logged(service, "of-log")
    assert line["ms"] >= 0
    assert {name: line[name] for name in ("level", "tenant", "method", "route", "operation", "target", "status")} == {
        "level": "info", "tenant": "default", "method": "POST", "route": "/v1/sandboxes/{sandbox_id}/{operation}",
        "operation": "run", "target": sandbox, "status": 200,
    }  # fmt: skip
    key = "e2b_" + 40 * "0"
    answer = httpx.get(f"{service.url}/v1/sandboxes/{key}", headers={"X-API-Key": key, "X-Request-Id": "of-key"})
    assert (answer.status_code, logged(service, "of-key")["code"]) == (401, "unauthorized")
    log = (service.folder.parent / "service.log").read_text()
    assert not [each for each in (SECRET, BODY, key, service.key) if each in log]


def test_the_audit_says_who_did_what(service: ServiceProcess, api: Api, sandbox: str) -> None:
    made = api.call("POST", "/keys", {"name": "other", "scope": "admin"}, status=201)
    with Api(service, made["key"]) as other:
        other.run(sandbox, "sleep 5", timeout_seconds=0.1, request_id="of-audit")
        other.call("POST", f"/sandboxes/{sandbox}/read", {"path": "/etc/passwd"})
        other.call("DELETE", f"/keys/{made['id']}", status=204)
    forged = {"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1", "X-Real-IP": "192.0.2.1"}
    nobody = httpx.delete(f"{service.url}/v1/sandboxes/{sandbox}", headers={"X-Request-Id": "of-nobody", **forged})
    assert nobody.headers["cache-control"] == "no-store"
    denied = eventually(lambda: audited(api, outcome="unauthorized", target=sandbox))[0]
    assert {name: denied[name] for name in ("tenant", "key_id", "request_id", "action", "status", "address")} == {
        "tenant": None, "key_id": None, "request_id": "of-nobody", "action": "sandboxes.delete", "status": 401,
        "address": "127.0.0.1",
    }  # fmt: skip
    entries = audited(api, key_id=made["id"])
    assert [(each["action"], each["target"], each["outcome"]) for each in entries] == [
        ("keys.revoke_key", made["id"], "ok"), ("operations.run", sandbox, "timeout"),
    ]  # fmt: skip
    assert audited(api, action="keys.create_key")[0]["target"] == made["id"]
    assert audited(api, target=sandbox, action="sandboxes.create")
    first = api.call("GET", "/audit", params={"limit": 1})
    assert audited(api, cursor=first["next_cursor"])[0]["request_id"] != first["items"][0]["request_id"]
    api.call("GET", "/audit", params={"cursor": first["next_cursor"], "tenant": "default"}, status=422)
    shown = json.dumps(audited(api))
    assert not [each for each in (SECRET, BODY, 40 * "0", made["key"]) if each in shown]


def test_the_numbers_need_an_operator_or_a_listener_of_their_own(
    service: ServiceProcess, api: Api, sandbox: str
) -> None:
    (url,) = (each["url"] for each in lines(service) if "Prometheus" in each["message"])
    api.run(sandbox, "false")
    key = api.call("POST", "/keys", {"scope": "manage"}, status=201)["key"]
    assert httpx.get(f"{service.url}/metrics", headers={"X-API-Key": key}).status_code == 403
    for text in (
        httpx.get(f"{service.url}/metrics", headers={"X-API-Key": service.key}).text,
        httpx.get(url).text,
    ):
        numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(numbers['gamebox_sandboxes{state="running"}']) == 1
        assert float(numbers["gamebox_create_seconds_count"]) == 1
        assert float(numbers['gamebox_run_seconds_count{outcome="failed"}']) >= 1
        route = 'method="POST",route="/v1/sandboxes",status="201"'
        assert float(numbers[f"gamebox_api_requests_total{{{route}}}"]) == 1
        assert {"gamebox_egress_denied_total", "gamebox_quota_rejections_total", "process_open_fds"} <= set(numbers)
        assert sandbox not in text
    assert httpx.get(f"{url}/v1/whoami").status_code == 404
    assert httpx.get(url, headers={"Host": "evil.example.com"}).status_code == 421


def test_a_trace_goes_on_from_the_client_to_the_operation(
    service: ServiceProcess, sandbox: str, collector: Collector
) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("tests")
    attached = RemoteEnvironment.attach(sandbox, url=service.url, api_key=service.key)
    with attached as env, tracer.start_as_current_span("of the client") as span:
        env.run("exit 3")
    trace = format(span.get_span_context().trace_id, "032x")
    assert (run := eventually(lambda: next((s for s in collector.spans if s.name == "run" and s.trace_id == trace), None)))
    # It ends later, so it may be in a later batch.
    assert (request := eventually(lambda: next((s for s in collector.spans if s.span_id == run.parent_id), None)))
    assert (request.name, request.kind) == ("POST /v1/sandboxes/{sandbox_id}/{operation}", "SERVER")
    assert request.parent_id == format(span.get_span_context().span_id, "016x")
    assert run.attributes["process.exit.code"] == 3
    assert run.attributes["gamebox.sandbox.id"] == sandbox
    assert run.resource["service.name"] == "gamebox-service"


def test_a_backup_is_restored_and_compared_with_the_engine(
    service: ServiceProcess, api: Api, sandbox: str, tmp_path: Path, engine: OwnEngine
) -> None:
    """Last of all: it ends what the others share."""
    gone = api.create(image=IMAGE)
    file = tmp_path / "backup.tar"
    done = run_gamebox("serve", "backup", file, "--data", service.folder)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        assert tar.getnames() == ["manifest.json", "service.db"]
    api.call("DELETE", f"/sandboxes/{gone}", status=204)
    unknown = api.create(image=IMAGE)
    refused = run_gamebox("serve", "restore", file, "--data", service.folder)
    assert (refused.returncode, "Another service uses the folder" in refused.stderr) == (2, True)

    api.call("POST", "/keys", {"name": "the last moment"}, status=201)
    service.stop()
    with closing(sqlite3.connect(service.folder / "service.db")) as store:
        assert store.execute("SELECT action FROM audit ORDER BY id DESC LIMIT 1").fetchone() == ("keys.create_key",)
    listed = run_gamebox("serve", "restore", file, "--data", service.folder)
    assert listed.returncode == 0, listed.stderr
    assert "1 sandboxes are there, 1 are gone" in listed.stdout
    assert "unknown to the backup: gamebox-" in listed.stdout
    assert len(engine.containers()) == 2
    removed = run_gamebox("serve", "restore", file, "--data", service.folder, "--remove-unknown")
    assert "\nremoved: gamebox-" in removed.stdout
    assert len(engine.containers()) == 1

    service.start()
    with Api(service) as again:
        assert again.run(sandbox, "echo on")["result"]["output"] == "on\n"
        assert again.state(gone) == "lost"
        again.call("GET", f"/sandboxes/{unknown}", status=404)
        assert not [each for each in again.call("GET", "/keys")["items"] if each["name"] == "the last moment"]
        again.call("DELETE", f"/sandboxes/{sandbox}", status=204)
