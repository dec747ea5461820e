"""What a post-mortem tells of the side services of a test's sandbox."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from sandbox.docker.services.running import RunningService
from sandbox.environment.call_errors import answered

from .recorded import Recorded, RecordedDocker

LOG_BYTES = 4000


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """A side service, how it is (in words), and the end of what it printed; of a shared one, since the test began."""

    name: str
    image: str
    state: str
    output: str


def services_of(env: Recorded) -> Mapping[str, RunningService]:
    """The side services of a test's sandbox by their names."""
    return env.services if isinstance(env, RecordedDocker) else {}


def offsets(env: Recorded, shared: Container[RunningService]) -> dict[str, int]:
    """How much those of its services that are shared have printed by now, in bytes."""
    found = {}
    for name, service in services_of(env).items():
        if service in shared:
            said = answered(service.logs, max_bytes=1)
            found[name] = said.result.total_bytes if said.ok else 0
    return found


def service_logs(env: Recorded, begun: Mapping[str, int]) -> tuple[ServiceLog, ...]:
    """What is known of each; ``begun`` are the ``offsets`` when the test began."""
    return tuple(_log(name, service, begun.get(name, 0)) for name, service in services_of(env).items())


def _log(name: str, service: RunningService, begun: int) -> ServiceLog:
    image, ended = service.service.image, service.ended
    said = answered(service.logs, max_bytes=1)
    if not said.ok:
        how, lines = ended or (said.error, "")
        return ServiceLog(name, image, f"ended: {how}", lines)
    state = "running" if ended is None else f"ended: {ended[0]}"
    end = answered(service.logs, offset=max(begun, said.result.total_bytes - LOG_BYTES), max_bytes=LOG_BYTES)
    return ServiceLog(name, image, state, end.result.content if end.ok else "")
