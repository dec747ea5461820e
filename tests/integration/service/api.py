"""The HTTP API of a service as plain requests, for tests of what crosses the wire."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx

from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess

SMALL = {"memory_bytes": 64 << 20}


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    name: str
    data: dict[str, Any]
    id: int | None

    @property
    def output(self) -> bytes:
        """The bytes of a piece of output."""
        return base64.b64decode(self.data["data_base64"])


class Api:
    """Requests to a service with its first key, or with ``key``."""

    def __init__(self, service: ServiceProcess, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key or service.key}"}
        self.http = httpx.Client(base_url=service.url, headers=headers, timeout=120, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any) -> Any:
        """Send a request and return the JSON of its answer, which must have ``status``."""
        content = None if body is None else json.dumps(body)
        answer = self.http.request(method, f"/v1{path}", content=content, **options)
        assert answer.status_code == status, (answer.status_code, answer.text[:1000])
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
        return answer.json() if answer.content else None

    def create(self, **body: Any) -> str:
        """Create a small sandbox and return its id."""
        return str(self.call("POST", "/sandboxes", {"limits": SMALL, **body}, status=201)["id"])

    def state(self, ident: str) -> str:
        """Return the state of a sandbox."""
        return str(self.call("GET", f"/sandboxes/{ident}")["state"])

    def run(self, ident: str, command: str, *, request_id: str | None = None, **args: Any) -> dict[str, Any]:
        """Run a command and return the envelope."""
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        body = {"command": command, **args}
        found: dict[str, Any] = self.call("POST", f"/sandboxes/{ident}/run", body, headers=headers)
        return found

    @contextmanager
    def running(self, ident: str, command: str, request_id: str) -> Iterator[list[dict[str, Any]]]:
        """Run a command in a thread during the block; the envelope is in the list after it."""
        answers: list[dict[str, Any]] = []

        def run() -> None:
            with Api.__new__(Api) as other:
                other.http = httpx.Client(base_url=self.http.base_url, headers=self.http.headers, timeout=120, trust_env=False)
                try:
                    answers.append(other.run(ident, command, request_id=request_id))
                except httpx.HTTPError as error:
                    answers.append({"cut": repr(error)})

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert eventually(lambda: request_id in self.under_way(ident))
            yield answers
        finally:
            thread.join()

    def under_way(self, ident: str) -> list[str]:
        """Return the ids of the requests under way."""
        return [each["id"] for each in self.call("GET", f"/sandboxes/{ident}/requests")["items"]]

    @contextmanager
    def events(
        self, path: str, body: Any = None, *, after: int | None = None, request_id: str | None = None, method: str = "POST"
    ) -> Iterator[Iterator[Event]]:
        """Send a request that is answered by events."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        if request_id is not None:
            headers["X-Request-Id"] = request_id
        content = None if body is None else json.dumps(body)
        with self.http.stream(method, f"/v1{path}", content=content, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            ident = fields.get("id")
            yield Event(fields["event"], json.loads(fields["data"]), None if ident is None else int(ident))
            fields = {}
