"""One event stream per engine: it says why a container died, after the engine has removed all trace of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import docker
import requests.exceptions

from sandbox.interrupts import Shield

from .client import translated
from .shared import Shared

log = logging.getLogger(__name__)

SANDBOX_LABEL = "dev.gamebox.sandbox"
REMEMBERED = 4096
# An "oom" event belongs to the death of the container when it came so shortly before it (seen: 0.2 s).
OOM_SECONDS = 3.0
# A Ctrl-C is put off for no longer than this while a death is waited for.
TURN_SECONDS = 0.05


@dataclass
class Fate:
    """What the engine said about one container; times are monotonic seconds of this host."""

    exit_code: int | None = None
    died: bool = False
    oom_at: float | None = None
    killed_by_engine: bool = False
    removed: bool = False
    seen: list[str] = field(default_factory=list)


class EngineEvents:
    """Collects the fates of this engine's sandboxes. Use ``watch(client)`` before a container is started."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._fates: OrderedDict[str, Fate] = OrderedDict()
        self._changed = threading.Condition()
        self._client = client
        self.alive = True
        self._stream: Any = None
        self._problem: Exception | None = None
        opened = threading.Event()
        threading.Thread(target=self._read, args=(opened,), name="gamebox-events", daemon=True).start()
        with translated():
            # The stream may be silent for as long as nothing happens, so its opening has no timeout of docker-py's.
            if not opened.wait(client.api.timeout):
                self.alive = False
                raise TimeoutError("the engine's event stream does not open")
            if self._problem is not None:
                raise self._problem

    def fate(self, container_id: str, timeout_seconds: float) -> Fate:
        """What is known of a container, after waiting for its death at most ``timeout_seconds``."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with Shield(), self._changed:  # a Ctrl-C can leave a Condition taken, and every sandbox of this process needs it
                fate = self._fates.get(container_id, Fate())
                left = deadline - time.monotonic()
                if fate.died or not self.alive or left <= 0:
                    return fate
                self._changed.wait(min(left, TURN_SECONDS))

    def _open(self, opened: threading.Event) -> bool:
        """Whether the stream is there, and still wanted."""
        try:
            self._stream = self._client.api.events(decode=True, filters={"type": "container", "label": SANDBOX_LABEL})
        except Exception as error:  # noqa: BLE001 - raised again, by whoever waits
            self._problem = error
            self.alive = False
        finally:
            opened.set()
        return self._stream is not None

    def _read(self, opened: threading.Event) -> None:
        if not self._open(opened):
            return
        try:
            for event in self._stream:
                self._take(event)
                if not self.alive:  # it was given up before it opened
                    break
        except (requests.exceptions.RequestException, OSError, ValueError) as error:
            log.info("the engine's event stream ended: %s", error)
        except Exception:
            log.exception("the engine's event stream failed")
        with contextlib.suppress(OSError, docker.errors.DockerException):
            self._stream.close()
        with self._changed:
            self.alive = False
            self._changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        actor = event.get("Actor") or {}
        container_id, action = actor.get("ID"), str(event.get("Action", "")).partition(":")[0]
        if not container_id or action not in {"oom", "kill", "die", "destroy"}:
            return
        with self._changed:
            fate = self._fates.setdefault(container_id, Fate())
            fate.seen.append(action)
            if action == "oom":
                fate.oom_at = time.monotonic()
            elif action == "kill":
                fate.killed_by_engine = True
            elif action == "die":
                fate.died = True
                code = (actor.get("Attributes") or {}).get("exitCode", "")
                fate.exit_code = int(code) if str(code).isdigit() else None
                if fate.oom_at is not None and time.monotonic() - fate.oom_at > OOM_SECONDS:
                    fate.oom_at = None
            else:
                fate.removed = True
            del fate.seen[:-20]
            while len(self._fates) > REMEMBERED:
                self._fates.popitem(last=False)
            self._changed.notify_all()


_watched: Shared[int, EngineEvents] = Shared()


def watch(client: docker.DockerClient) -> EngineEvents:
    """The event stream of ``client``'s engine, opened once and again after it broke. Raises SandboxError."""
    return _watched.obtain(id(client), lambda: EngineEvents(client), lambda events: events.alive)
