"""Describe the side services of a test's sandbox for its post-mortem."""

from __future__ import annotations

from collections.abc import Container, Mapping

from sandbox.docker.services.running_service import RunningService
from sandbox.environment.call_errors import answered
from sandbox.frozen import dataclass

from .recorded import Recorded, RecordedDocker

LOG_BYTES = 4000


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """A side service, its state in words, and the end of its output; for a shared service, of its output since the test began."""

    name: str
    image: str
    state: str
    output: str


def services_of(env: Recorded) -> Mapping[str, RunningService]:
    """Return the side services of a test's sandbox by name."""
    return env.services if isinstance(env, RecordedDocker) else {}


def offsets(env: Recorded, shared: Container[RunningService]) -> dict[str, int]:
    """Return how many bytes each of the sandbox's shared services has printed by now."""
    found = {}
    for name, service in services_of(env).items():
        if service in shared:
            logs = answered(service.logs, max_bytes=1)
            found[name] = logs.result.total_bytes if logs.ok else 0
    return found


def service_logs(env: Recorded, begun: Mapping[str, int]) -> tuple[ServiceLog, ...]:
    """Return the log of each service. ``begun`` are the ``offsets`` when the test began."""
    return tuple(_log(name, service, begun.get(name, 0)) for name, service in services_of(env).items())


def _log(name: str, service: RunningService, begun: int) -> ServiceLog:
    image, ended = service.service.image, service.ended
    logs = answered(service.logs, max_bytes=1)
    if not logs.ok:
        how, lines = ended or (logs.error, "")
        return ServiceLog(name, image, f"ended: {how}", lines)
    state = "running" if ended is None else f"ended: {ended[0]}"
    end = answered(service.logs, offset=max(begun, logs.result.total_bytes - LOG_BYTES), max_bytes=LOG_BYTES)
    return ServiceLog(name, image, state, end.result.content if end.ok else "")
