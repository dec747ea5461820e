"""One event stream per engine. It tells why a container died, after the engine has removed every trace of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import docker
import requests.exceptions

from sandbox.interrupts import Shield

from .client import is_podman, translated
from .shared import Shared

log = logging.getLogger(__name__)

SANDBOX_LABEL = "dev.gamebox.sandbox"
MOST_FATES = 4096
_REMOVED = ("destroy", "remove")  # as Docker and as Podman say it
# An "oom" event explains the death of its container if it came at most this long before (seen: 0.2 s).
OOM_SECONDS = 3.0
# How long waiting for a death may delay a Ctrl-C.
TURN_SECONDS = 0.05


@dataclass
class Fate:
    """The events of one container. Times are monotonic seconds of this host."""

    exit_code: int | None = None
    died: bool = False
    removed: bool = False
    oom_at: float | None = None
    killed_by_engine: bool = False


class EngineEvents:
    """Collects the events of this engine's sandboxes; see ``watch``."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._fates: OrderedDict[str, Fate] = OrderedDict()
        self._changed = threading.Condition()
        self._client = client
        self.alive = True
        self._stream: Any = None
        self._problem: Exception | None = None
        self._opened = threading.Event()
        self._began = time.monotonic()
        with Shield():  # the start of a thread waits for an Event
            threading.Thread(target=self._read, name="gamebox-events", daemon=True).start()

    def wait_until_open(self) -> None:
        """Return when no event can be missed any more. Raises SandboxError."""
        with translated():
            # A stream is silent while nothing happens, so docker-py's timeout cannot bound its opening.
            deadline = self._began + self._client.api.timeout
            while not self._opened.is_set() and time.monotonic() < deadline:
                with Shield():  # an Event's own lock can be left taken by a signal
                    self._opened.wait(TURN_SECONDS)
            if not self._opened.is_set():
                self.alive = False
                raise TimeoutError("the engine's event stream does not open")
            if self._problem is not None:
                raise self._problem

    def fate(
        self, container_id: str, timeout_seconds: float, until: Callable[[Fate], bool] = lambda fate: fate.died
    ) -> Fate:
        """Return the events of a container, after waiting up to ``timeout_seconds`` for its death, or for ``until``."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with (
                Shield(),
                self._changed,
            ):  # a Ctrl-C could leave the Condition locked, which every sandbox of this process needs
                fate = self._fates.get(container_id, Fate())
                left = deadline - time.monotonic()
                if until(fate) or not self.alive or left <= 0:
                    return fate
                self._changed.wait(min(left, TURN_SECONDS))

    def _open(self) -> bool:
        """Open the stream and return whether it is open."""
        try:
            # Podman knows no filter for the name of a label; ``_take`` looks at it.
            label = {} if is_podman(self._client) else {"label": SANDBOX_LABEL}
            self._stream = self._client.api.events(decode=True, filters={"type": "container", **label})
        except Exception as error:  # noqa: BLE001  the waiting constructor raises it
            self._problem = error
            self.alive = False
        finally:
            self._opened.set()
        return self._stream is not None

    def _read(self) -> None:
        if not self._open():
            return
        try:
            for event in self._stream:
                self._take(event)
                if not self.alive:  # the constructor gave up before it opened
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
        if not container_id or action not in {"oom", "kill", "die", *_REMOVED}:
            return
        if SANDBOX_LABEL not in (actor.get("Attributes") or {}):
            return
        with self._changed:
            fate = self._fates.setdefault(container_id, Fate())
            if action == "oom":
                fate.oom_at = time.monotonic()
            elif action == "kill":
                fate.killed_by_engine = True
            elif action in _REMOVED:  # after its volumes, and when its name is free
                fate.removed = True
            else:
                fate.died = True
                code = (actor.get("Attributes") or {}).get("exitCode", "")
                fate.exit_code = int(code) if str(code).isdigit() else None
                if fate.oom_at is not None and time.monotonic() - fate.oom_at > OOM_SECONDS:
                    fate.oom_at = None
            while len(self._fates) > MOST_FATES:
                self._fates.popitem(last=False)
            self._changed.notify_all()


_watched: Shared[int, EngineEvents] = Shared()


def watch(client: docker.DockerClient) -> EngineEvents:
    """Return the event stream of ``client``'s engine; begin to open it the first time, and after it broke.

    Call its ``wait_until_open`` before you start a container.
    """
    return _watched.obtain(id(client), lambda: EngineEvents(client), lambda events: events.alive)
