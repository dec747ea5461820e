"""The side services of one sandbox: started together with it, reached by name, ended with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from typing import Self

from sandbox.docker.environment import DockerEnvironment
from sandbox.envelope import Notice
from sandbox.environment.parts.secrets import Secrets
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages.notices import host_notice
from sandbox.network.dialling import UnreachableError
from sandbox.network.relay import Relay
from sandbox.network.services.names import Connector, Name, assign_addresses
from sandbox.network.services.peer_port import GONE
from sandbox.network.services.side_service import SideService

from .running_service import RunningService, started


class ServiceGroup:
    """Side services by name; a context manager. A RunningService among them belongs to another group, and is only reached.

    ``names`` go into the /etc/hosts of the sandbox that uses them; its secrets, ``hidden``, are masked in what the services print.
    Raises SandboxError ``invalid_configuration``.
    """

    def __init__(
        self,
        services: Mapping[str, SideService | RunningService],
        report: Callable[[str], None],
        hidden: Secrets | None = None,
    ) -> None:
        unchecked: Mapping[str, object] = services
        for name, service in unchecked.items():
            if not isinstance(service, SideService | RunningService):
                what = (
                    f"{service!r:.80}" if isinstance(service, str) else type(service).__name__
                )  # a dict may hold secrets
                raise SandboxError(
                    ErrorCode.invalid_configuration,
                    f"The service {name!r} is {what}, which is not a side service.",
                    f"Give it as in services={{{str(name)!r}: SideService(image=..., port=5432)}}.",
                )
        ports = {
            name: each.service.all_ports if isinstance(each, RunningService) else each.all_ports
            for name, each in services.items()
        }
        self.names: tuple[Name, ...] = assign_addresses(ports)
        self._to_start = {name: each for name, each in services.items() if isinstance(each, SideService)}
        self._report = report
        self._hidden = Secrets() if hidden is None else hidden
        self._running = {name: each for name, each in services.items() if isinstance(each, RunningService)}
        self._lock = threading.Lock()
        self._made: list[DockerEnvironment] = []
        self._ended: list[DockerEnvironment] = []
        self._starts: dict[str, Future[RunningService]] = {}
        self._closed = False
        self._reported: set[str] = set()

    @property
    def running(self) -> Mapping[str, RunningService]:
        """The services that are ready, by name."""
        return dict(self._running)

    def begin(self) -> None:
        """Start the services, each in a thread; return at once."""
        if not self._to_start or self._starts or self._closed:
            return
        pool = ThreadPoolExecutor(len(self._to_start), thread_name_prefix="gamebox-beside")
        for name, service in self._to_start.items():
            self._starts[name] = pool.submit(started, name, service, self._report, self._take)
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until all are ready. Raises the SandboxError of the first that fails; call ``close`` then."""
        wait(self._starts.values(), return_when=FIRST_EXCEPTION)
        try:
            for start in self._starts.values():
                if start.done():
                    start.result()
            self._running.update({name: start.result() for name, start in self._starts.items()})
        except CancelledError as error:  # by ``close``, before its thread began
            raise _closed() from error

    def close(self, *, wait: bool = False) -> None:
        """End all services that were started here; ``wait`` waits until they are gone. May be called more than once."""
        with self._lock:
            self._closed = True
            made = list(self._made)
        starts = list(self._starts.values())
        for start in starts:
            start.cancel()
        for environment in made:
            environment.close()
        self._ended += made
        self._made = []  # not earlier: after a Ctrl-C the next call ends those that are left
        for start in starts:  # those that were being made see that they are not wanted
            if not start.cancelled():
                start.exception()
        if wait:
            for environment in self._ended:
                environment.close(wait=True)

    def _take(self, environment: DockerEnvironment) -> None:
        self._hidden.followed_by(environment.hidden)
        with self._lock:
            if not self._closed:
                self._made.append(environment)
                return
        environment.close()
        raise _closed()

    def __enter__(self) -> Self:
        try:
            self.begin()
            self.finish()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connectors(self) -> dict[tuple[str, int], Connector]:
        """Return how each name and port is reached."""
        return {(name.name, port): self._way(name.name, port) for name in self.names for port in name.ports}

    def _way(self, name: str, port: int) -> Connector:
        async def dial(protocol: Callable[[], Relay]) -> tuple[Relay, str]:
            service = self._running.get(name)
            if service is None:
                raise UnreachableError(f"the service {name} is not ready yet")
            if service.ended is not None:
                raise UnreachableError(f"the service {name} has ended: {service.ended[0]}")
            peer_port = service.environment.peer_port(port)
            if peer_port is None:
                raise UnreachableError(GONE)
            return await peer_port.dial(protocol)

        return dial

    def notices(self) -> tuple[Notice, ...]:
        """Return a notice for each service that has ended since the last call."""
        found = []
        for name, service in list(self._running.items()):
            ended = service.ended
            if ended is None:
                continue
            with self._lock:
                if name in self._reported:
                    continue
                self._reported.add(name)
            how, lines = map(self._hidden.mask.part, ended)  # before they are cut
            found.append(host_notice("service_ended", {"name": name, "how": how, "lines": lines}))
        return tuple(found)

    def describe(self) -> str:
        """Return one sentence for the model; "" if there are no services."""
        listed = [f"{name.name} (port {', '.join(map(str, name.ports))})" for name in self.names]
        return f" Beside this sandbox run, reached by name: {'; '.join(listed)}." if listed else ""


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox that it stands beside was closed.", "Start another one.")
