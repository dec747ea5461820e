"""DockerEnvironment: a sandbox in a container of its own, reached through the engine's attach stream."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import docker
import docker.errors

from sandbox.ends import of_its_own_accord
from sandbox.environment import Approver
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.guest_environment import GuestEnvironment
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.transport import Transport

from . import container, enforcement, fitting
from .disk import Disk, prepare
from .engine import connect, translated
from .events import EngineEvents, watch
from .images import ensure_image
from .orphans import sweep
from .profiles import profile_named
from .runtime import RuntimeVolume, ensure_runtime, forget_runtime
from .stream import AttachStream

log = logging.getLogger(__name__)

START_SECONDS = 30.0
# The end of the pipe is worded within 2 s: that long for the engine's own word, the rest for asking it.
FATE_SECONDS = 1.2
ENGINE_SECONDS = 1
GONE_SECONDS = 10.0
# A create whose answer was not awaited shows up within this (seen: 20 ms, more on a busy engine).
CREATE_SECONDS = 2.0


class DockerEnvironment(GuestEnvironment):
    """A sandbox on a Docker Engine; use it as a context manager, or ``start()`` and ``close()``.

    ``image`` must be on the engine (``gamebox/*`` images are built when they are missing; nothing is pulled). ``workspace`` is a
    folder of the host that is copied in at the start; nothing is copied back by itself. ``env`` are variables for every
    command; ``ca_bundle`` a file of certificates (PEM) that commands are to trust. ``report`` gets a line for each slow step
    of the set-up. ``profile`` is default, root or conformance (see docs/isolation.md); ``runtime`` names one of the engine's
    OCI runtimes, as in "runsc". Raises SandboxError.
    """

    def __init__(
        self,
        image: str = "gamebox/base",
        workspace: str | os.PathLike[str] | None = None,
        *,
        limits: Limits | None = None,
        network: Network | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        approver: Approver | None = None,
        report: Callable[[str], None] | None = None,
        profile: str = "default",
        runtime: str | None = None,
    ) -> None:
        self.profile = profile_named(profile)
        super().__init__(self.profile.fitted(limits or Limits()), network, approver)
        self.image = image
        self._workspace = None if workspace is None else Path(workspace)
        self._env = dict(env or {})
        self._bundle = None if ca_bundle is None else Path(ca_bundle)
        self._report = report or log.info
        self._name = f"gamebox-{secrets.token_hex(8)}"
        self._client: docker.DockerClient | None = None
        self._creating = False
        self._container_id: str | None = None
        self._stream: AttachStream | None = None
        self._events: EngineEvents | None = None
        self._oci_runtime = runtime
        self._disk: Disk | None = None
        if self.profile.warning:
            log.warning(self.profile.warning)
        _check_inputs(image, self._workspace, self._bundle, self._env)

    @property
    def container_id(self) -> str:
        """The engine's id of the container. Raises SandboxError before the start."""
        if self._container_id is None:
            raise SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", "Call start() first.")
        return self._container_id

    # --- start ------------------------------------------------------------------
    def _connect(self) -> Transport:
        client = self._client = self._fitting_engine()
        image_id = ensure_image(client, self.image, report=self._report)
        runtime = ensure_runtime(client, report=self._report)
        self._events = watch(client)
        sweep(client)
        with translated():
            image_env = client.api.inspect_image(image_id)["Config"].get("Env") or []
        disk = self._disk = prepare(client, self.limits, self.profile, container.WORKSPACE)
        try:
            try:
                self._stream = self._started(client, image_id, runtime, disk)
            except SandboxError as error:
                if runtime.argv[0] not in error.message:
                    raise
                # Somebody removed the runtime volume, and the engine silently mounted a new, empty one.
                self._remove()
                forget_runtime(client)
                runtime = ensure_runtime(client, report=self._report)
                self._stream = self._started(client, image_id, runtime, disk)
        except SandboxError as error:
            raise enforcement.refusal(error, self.limits) from error
        finally:
            disk.release()
        transport = Transport(self._stream, self._post_mortem)
        place = container.place_of(runtime, self.profile, image_env, self._env, self._bundle is not None)
        hello = {
            **self._hello(place, isolated=True),
            "disk": disk.for_guest(self.limits, container.places(self.limits)),
        }
        facts = transport.open(hello, START_SECONDS)
        self._transport = transport
        enforcement.check(self.limits, disk, container.places(self.limits), facts)
        self._fill()
        return transport

    def _fitting_engine(self) -> docker.DockerClient:
        if self._workspace is not None:
            fitting.check_workspace(self._workspace, self.limits)
        client = connect()
        fitting.check_memory(client, self.limits)
        if self._oci_runtime is not None:
            check_runtime(client, self._oci_runtime)
        return client

    def _started(self, client: docker.DockerClient, image_id: str, runtime: RuntimeVolume, disk: Disk) -> AttachStream:
        shape = container.Shape(self.limits, self.network, self.profile, disk, self._oci_runtime)
        with translated():
            self._creating = True
            self._container_id = container.create(client, image_id, self._name, runtime, shape)
            self._creating = False
            attached = client.api.attach_socket(
                self._container_id, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            )
            self._stream = AttachStream(attached)
            client.api.start(self._container_id)
        return self._stream

    def _fill(self) -> None:
        if self._bundle is not None:
            self.upload(self._bundle, container.bundle_path(self.profile)).unwrap()
        if self._workspace is not None:
            copied = self.upload(self._workspace, container.WORKSPACE)
            if not copied.ok and copied.code is ErrorCode.no_space:
                raise fitting.workspace_too_large(self._workspace, self.limits)
            copied.unwrap()

    # --- end ------------------------------------------------------------------
    def _release(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.release()
        if self._client is not None:
            self._remove()

    def _remove(self) -> None:
        """Remove the container, by its name: a create that timed out or was interrupted may be carried out all the same."""
        now = time.monotonic()
        deadline, created_by = now + GONE_SECONDS, now + (CREATE_SECONDS if self._creating else 0)
        while self._client is not None and time.monotonic() < deadline:
            try:
                with translated():
                    self._client.api.remove_container(self._name, force=True, v=True)
            except SandboxError as error:
                if isinstance(error.__cause__, docker.errors.NotFound):
                    if time.monotonic() >= created_by:
                        return
                    time.sleep(0.05)
                    continue
                if error.code is not ErrorCode.engine_error:
                    log.warning("could not remove sandbox %s: %s", self._name, error)
                    return
                time.sleep(0.005)  # its removal is under way
            else:
                return

    def _unanswered(self, error: SandboxUnavailableError) -> SandboxUnavailableError:
        """The guest is silent past a command's deadline: end the container, for nothing may be left running."""
        if self._client is None or self._container_id is None:
            return error
        with contextlib.suppress(SandboxError), translated():
            if self._client.api.inspect_container(self._container_id)["State"].get("Paused"):
                return SandboxUnavailableError(
                    "no_answer",
                    "The sandbox is paused: nothing in it runs until it is unpaused.",
                    "Unpause it, or start another.",
                )
            self._client.api.kill(self._container_id)
        return SandboxUnavailableError(
            "no_answer", f"{error.message} It was ended with everything in it.", "Start another sandbox."
        )

    def _post_mortem(self, reason: str, detail: str) -> SandboxUnavailableError:
        """Why the pipe ended, from the engine's events; within 2 s."""
        again = "Start another sandbox; files in this one are lost."
        if reason == "protocol_violation":
            return SandboxUnavailableError(reason, f"The sandbox broke the protocol ({detail}) and was cut off.", again)
        events = self._events
        fate = events.fate(self.container_id, FATE_SECONDS) if events is not None else None
        if fate is not None and fate.died:
            if fate.oom_at is not None and fate.exit_code == 137 and not fate.killed_by_engine:
                limit = self.limits.memory_bytes
                message = f"The sandbox ran out of memory (limit {limit} bytes) and was killed."
                return SandboxUnavailableError("out_of_memory", message, "Start another one with more memory_bytes.")
            if fate.killed_by_engine or fate.exit_code == 137:
                return SandboxUnavailableError("killed", "The sandbox's container was killed from outside.", again)
            if end := of_its_own_accord(fate.exit_code, self.limits):
                return end
            if fate.exit_code == 0:  # which it does at the end of its input
                return SandboxUnavailableError(
                    "pipe_broken", f"The connection to the sandbox was cut, and so it ended. {detail}".strip(), again
                )
            said = self._stream.stderr.strip().splitlines()[-1:] if self._stream is not None else []
            ended = f"The guest ended by itself with exit code {fate.exit_code}{': ' + said[0][:300] if said else ''}."
            return SandboxUnavailableError("exited", ended, again)
        if events is None or not events.alive:
            if _engine_answers():
                message = (
                    "The sandbox ended; the engine's word on why was missed, because its event stream had been cut."
                )
                return SandboxUnavailableError("removed", message, again)
            return SandboxUnavailableError(
                "engine_gone", f"The Docker Engine is gone. {detail}".strip(), "Start the engine again."
            )
        return SandboxUnavailableError("pipe_broken", f"The pipe to the sandbox broke. {detail}".strip(), again)

    def describe(self) -> dict[str, str]:
        """See ``GuestEnvironment.describe``; with what the disk limit is worth once it is started."""
        sections = super().describe()
        if self._disk is not None:
            sections["limits"] += f" {self._disk.describe()}"
        return sections

    def _kind(self) -> str:
        return f"An isolated container (image {self.image}). {self.profile.gives}"


def _engine_answers() -> bool:
    try:
        with translated():
            connect(ENGINE_SECONDS).ping()
    except SandboxError:
        return False
    return True


def _check_inputs(image: str, workspace: Path | None, bundle: Path | None, env: Mapping[str, str]) -> None:
    if not image.strip():
        raise SandboxError(
            ErrorCode.invalid_configuration, f"{image!r} names no image.", "Name one, as in gamebox/base."
        )
    if workspace is not None and not workspace.is_dir():
        what = "is a file, not a folder" if workspace.exists() else "does not exist"
        raise SandboxError(
            ErrorCode.workspace_invalid,
            f"The workspace {str(workspace)!r} {what}.",
            "Give the folder that is to be copied in.",
        )
    if bundle is not None and not bundle.is_file():
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The CA bundle {str(bundle)!r} is no file.",
            "Give a file of PEM certificates.",
        )
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise SandboxError(
                ErrorCode.invalid_configuration, f"{name!r} is no name for a variable.", "Give another name."
            )


def check_runtime(client: docker.DockerClient, name: str) -> None:
    """Raises SandboxError ``invalid_configuration`` where the engine has no OCI runtime of that name."""
    with translated():
        known = sorted(client.info().get("Runtimes") or {})
    if name not in known:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The engine has no runtime {name!r}.",
            f"Use one of {', '.join(known)}, or have the engine's administrator add it to daemon.json.",
        )
