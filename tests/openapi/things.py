"""Real things for requests that schemathesis makes up: sandboxes, files, requests under way, keys, checkpoints."""

from __future__ import annotations

import io
import itertools
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx

MEMORY = 128 << 20
MOST_MADE = 4
# Routes that end a sandbox, or stop it, get another one than the rest.
_PAUSES = ("/pause", "/resume")


class Things:
    """What the API made, for requests with a key of the first tenant."""

    def __init__(self, url: str, key: str, image: str) -> None:
        self.image, self._url = image, url
        self._http = httpx.Client(base_url=f"{url}/v1", headers={"X-API-Key": key}, timeout=60, trust_env=False)
        self._threads = ThreadPoolExecutor(8)
        self._begun_before: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._made: list[str] = []
        self._numbers = itertools.count()

    def sandbox_for(self, route: str) -> str:
        """Return the id of a sandbox for a request to a route."""
        if route == "DELETE /v1/sandboxes/{sandbox_id}":  # the first one ends it
            return self._sandbox("to be deleted")
        return self._sandbox("to be paused" if route.endswith(_PAUSES) else "used")

    def _sandbox(self, use: str) -> str:
        if use not in self._known:
            body = {"image": self.image, "limits": {"memory_bytes": MEMORY}, "metadata": {"use": use}, "idle_seconds": 7200}
            answer = self._http.post("/sandboxes", json=body)
            answer.raise_for_status()
            self._known[use] = answer.json()["id"]
        return self._known[use]

    @property
    def _path(self) -> str:
        return f"/sandboxes/{self._sandbox('used')}"

    def delete_later(self, ident: str) -> None:
        """Delete a sandbox when a few others were made after it: what was created is looked at, too."""
        self._made.append(ident)
        if len(self._made) > MOST_MADE:
            with suppress(httpx.HTTPError):
                self._http.delete(f"/sandboxes/{self._made.pop(0)}")

    def key(self, tenant: str | None = None) -> str:
        """Make a key, of that tenant, and return its id."""
        path = "/keys" if tenant is None else f"/tenants/{tenant}/keys"
        return str(self._http.post(path, json={"scope": "read"}).json()["id"])

    def tenant_for(self, route: str) -> str:
        """Return the id of a tenant for a request to a route."""
        name = "gone" if route == "DELETE /v1/tenants/{tenant_id}" else "tested"
        if name not in self._known:
            self._http.post("/tenants", json={"id": name}).raise_for_status()
            self._known[name] = name
        return name

    def tar(self) -> bytes:
        """Return a folder as a tar."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            member = tarfile.TarInfo("unpacked.txt")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"text\n"))
        return stream.getvalue()

    def file(self) -> str:
        """Write a file and return its path."""
        self._http.put(f"{self._path}/files", params={"path": "there.txt"}, content=b"text\n").raise_for_status()
        return "there.txt"

    def session(self) -> None:
        """See that the sandbox has the session that requests of SWE-ReX use."""
        wire = f"{self._url}/wire/swerex/{self._sandbox('used')}"
        self._http.post(f"{wire}/create_session", json={"session": "default"})

    def checkpoint(self) -> str:
        """Make a checkpoint and return its id."""
        answer = self._http.post(f"{self._path}/checkpoint", json={}).json()
        return str(answer["result"]["id"])

    def answered(self) -> str:
        """Carry out a request and return its id."""
        self._http.post(f"{self._path}/usage", json={}, headers={"X-Request-Id": "answered"}).raise_for_status()
        return "answered"

    def under_way(self) -> str:
        """Begin a request and return its id."""
        return self._begun(f"under-way-{next(self._numbers)}", {"command": "sleep 20", "session": None}, {})

    def reading(self) -> str:
        """Begin a command that reads its input, and return the id of the request."""
        body = {"command": "cat", "session": None, "timeout_seconds": 30}
        return self._begun(f"reading-{next(self._numbers)}", body, {"X-Gamebox-Stdin": "stream"})

    def _begun(self, ident: str, body: Any, headers: dict[str, str]) -> str:
        """Begin a request; the one like it before is stopped, since the request that should end it may have been refused."""
        path, kind = self._path, body["command"]
        if kind in self._begun_before:
            self._http.delete(f"{path}/requests/{self._begun_before[kind]}")
        self._begun_before[kind] = ident
        self._threads.submit(self._http.post, f"{path}/run", json=body, headers={**headers, "X-Request-Id": ident})
        for _ in range(200):
            if ident in [each["id"] for each in self._http.get(f"{path}/requests").json()["items"]]:
                break
            threading.Event().wait(0.02)
        return ident
