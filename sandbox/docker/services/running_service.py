"""A side service that runs: its sandbox, its command in it, and how that ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from sandbox.docker.container.image_start import ImageStart, ImageUser, read_image_start
from sandbox.docker.container.profiles import GUEST_CAPABILITIES, Profile
from sandbox.docker.engine.client import connect
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.images.images import ensure_image
from sandbox.envelope import Envelope
from sandbox.environment.generated.methods import LogsOptions
from sandbox.errors import ErrorCode, SandboxError
from sandbox.limits import Limits
from sandbox.network.services.side_service import SideService
from sandbox.pipe.following import Following
from sandbox.ready import NotReadyError, wait_for_command, wait_for_http, wait_for_log, wait_for_port
from sandbox.text.wording import size

if TYPE_CHECKING:
    from sandbox.operations import LogsResult

log = logging.getLogger(__name__)

# The longest that may be waited for at once (see ``operations.WaitFor``); then it is asked again.
WATCH_SECONDS = 86400.0
LAST_LINES = 8


def service_environment(service: SideService, user: ImageUser, report: Callable[[str], None]) -> DockerEnvironment:
    """Return the sandbox of a side service, not started: no network, a writable root as servers expect it, the image's own user."""
    limits = replace(service.limits or Limits(), lifetime_seconds=None, idle_seconds=None)  # it ends with the other
    profile = Profile(
        name="service",
        uid=user.uid,
        gid=user.gid,
        user=user.name,
        home=user.home,
        read_only_root=False,
        capabilities=None if user.uid == 0 else GUEST_CAPABILITIES,
        file_roots=("/",),
        gives=f"Commands run as {user.name} (uid {user.uid}); the whole file system is that of the image.",
    )
    return DockerEnvironment(
        service.image, limits=limits, env=service.env, report=report, profile=profile, track_changes=False
    )


class RunningService:
    """A side service that was started. ``environment`` is its sandbox, where ``command_id`` is its command.

    May be given to further environments in place of a SideService: they reach the same one, and it ends with its own.
    """

    def __init__(self, name: str, service: SideService, environment: DockerEnvironment, command_id: str) -> None:
        self.name = name
        self.service = service
        self.environment = environment
        self.command_id = command_id
        self._ended: tuple[str, str] | None = None

    @property
    def ended(self) -> tuple[str, str] | None:
        """The way it ended, in words, and its last lines; None while it runs.

        A server that moves itself into the background is not watched.
        """
        return self._ended

    def logs(self, **options: Unpack[LogsOptions]) -> Envelope[LogsResult]:
        """Return its output; options as in ``OperationMethods.logs``."""
        return self.environment.logs(self.command_id, **options)

    def follow(self, *, offset: int = 0) -> Following:
        """Return its output as it comes; see ``OperationMethods.follow``."""
        return self.environment.follow(self.command_id, offset=offset)

    def wait_until_ready(self) -> None:
        """See ``SideService.ready``. Raises NotReadyError with the end of its output, SandboxError."""
        env, ready, port = self.environment, self.service.ready, self.service.all_ports[0]
        how: dict[str, Any] = {"command_id": self.command_id, "timeout_seconds": ready.timeout_seconds}
        if ready.log is not None:
            wait_for_log(env, self.command_id, ready.log, timeout_seconds=ready.timeout_seconds)
        elif ready.command is not None:
            wait_for_command(env, ready.command, **how)
        elif ready.http is not None:
            place = ready.http if ready.http.startswith(":") else f":{port}{ready.http}"
            wait_for_http(env, f"http://127.0.0.1{place}", **how)
        else:
            wait_for_port(env, port, **how)

    def watch(self) -> None:
        """Note its end from now on, in a thread that ends with its sandbox."""
        threading.Thread(target=self._watch, name=f"gamebox-service-{self.name}", daemon=True).start()

    def _watch(self) -> None:
        while True:
            waited = {"exit": True, "id": self.command_id, "timeout_seconds": WATCH_SECONDS}
            answer = self.environment.execute("wait_for", waited)
            if answer.ok:
                break
            if answer.code is ErrorCode.sandbox_closed or getattr(answer, "reason", "") == "closed":
                return
            if answer.code is not ErrorCode.not_ready:
                self._ended = (answer.error, "")
                return
        state: Envelope[LogsResult] = self.environment.execute(
            "logs", {"id": self.command_id, "tail_lines": LAST_LINES}
        )
        if not state.ok:
            self._ended = (state.error, "")
        elif not state.result.left_running:
            signal, code = state.result.signal, state.result.exit_code
            how = f"killed by {signal}" if signal else f"exit code {code}"
            # A shell exits with 128 + 9 where its command was killed.
            if (signal == "SIGKILL" or code == 137) and self.environment.backend.ran_out_of_memory():
                how += f", its {size(self.environment.limits.memory_bytes)} of memory were used up"
            self._ended = (how, state.result.content)


def started(
    name: str,
    service: SideService,
    report: Callable[[str], None],
    made: Callable[[DockerEnvironment], None],
) -> RunningService:
    """Start a service and wait until it is ready; ``made`` gets its sandbox when that is started, and may refuse it by raising.

    Raises SandboxError that names the service; NotReadyError with the end of its output.
    """
    try:
        client = connect()
        image_id = ensure_image(client, service.image, report=report)
        start = read_image_start(client, service.image, image_id, service.user)
        environment = service_environment(service, start.user, report)
        environment.start()
        made(environment)
        running = RunningService(name, service, environment, _begun(environment, service, start))
        running.wait_until_ready()
        running.watch()
    except NotReadyError as error:
        message = f"The side service {name!r} did not become ready: {error.message}"
        raise NotReadyError(message, error.hint, error.logs, error.waited_seconds) from error
    except SandboxError as error:
        message = f"The side service {name!r} could not be started: {error.message}"
        raise SandboxError(error.code, message, error.hint) from error
    return running


def _begun(environment: DockerEnvironment, service: SideService, start: ImageStart) -> str:
    """Start the command of the service; return its id."""
    command: dict[str, Any] = {"argv": start.argv}
    if isinstance(service.command, str):
        command = {"command": service.command}
    elif service.command is not None:
        command = {"argv": tuple(service.command)}
    elif not start.argv:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The image {service.image!r} has neither ENTRYPOINT nor CMD.",
            "Give the service a command.",
        )
    return environment.run(**command, cwd=start.folder, session=None, background=True).unwrap().id
