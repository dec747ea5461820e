"""Build: carry out a plan, each step in a sandbox of the image before it, and commit what it changed as a layer."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import NoReturn

import docker

from sandbox.docker.engine import locks
from sandbox.docker.engine.client import connect, is_podman
from sandbox.docker.images.images import ensure_image
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.limits import GIB, Limits
from sandbox.network.ceiling import Ceiling
from sandbox.network.policy import Network
from sandbox.packages.cache import PackageCache
from sandbox.pipe.watching import CancelToken
from sandbox.text.wording import size

from . import engine_images as engine
from .archives import ArchiveStore
from .configuration import Configuration, MakeFolders, expand_copy, final_key, layer_key
from .engine_images import EngineImage
from .log import BuildLog, LogEntry
from .room import Room
from .step_hints import WROTE_TOO_MUCH
from .step_sandbox import StepFailedError, StepSandbox, Surroundings, step_sandbox
from .steps import Copy, Env, Plan, Run, User, Workdir, invalid

ENGINE_SECONDS = 900
"""How long the engine may take for one commit: it reads and packs what the step wrote."""
_COMMIT_ATTEMPTS = 3
_TURN_SECONDS = 0.1
_READY_TURN_SECONDS = 0.5
BASE, FINALIZE = "base", "finalize"
IN_CACHE = "in the cache"
ProvideBase = Callable[..., str]
"""Called with client, name and ``report=``; returns the id of an image. See ``ensure_image``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """Limits of one build. ``sandbox`` are those of each step's sandbox; its ``disk_bytes`` bounds what one step may write.

    ``image_bytes`` bounds what all layers together add to the base. ``room`` bounds those that are not in the cache already, for
    quotas: builds at once may share it; None means no such limit. ``log_bytes`` bounds the text that is reported, ``ready_seconds``
    how long a start command may take to be ready.
    """

    sandbox: Limits = field(default_factory=Limits)
    timeout_seconds: float = 3600.0
    step_timeout_seconds: float = 1800.0
    ready_seconds: float = 120.0
    image_bytes: int = 10 * GIB
    room: Room | None = None
    steps: int = 100
    log_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that was built. ``bytes`` is its size with its base, ``added_bytes`` without."""

    id: str
    bytes: int
    added_bytes: int
    steps_run: int
    steps_cached: int
    env: Mapping[str, str]
    workdir: str
    user: str
    start_command: str
    ready_command: str


class Build:
    """One build of ``plan`` for ``owner``. ``run`` may be called once, in any thread; ``cancel`` in any other.

    ``network`` and ``ceiling`` apply to the sandboxes of the steps as to any other sandbox of the owner. ``env`` are variables for
    the commands of this build only, which may be secret: those of 8 and more characters are masked in the log, and none is in a
    configuration or a key of the cache. ``ca_bundle`` are certificates that the commands trust, which no layer has either, and
    ``cache`` serves them packages. ``provide_base`` makes or gets a missing base. ``complete`` is called with the surroundings
    before the first step that is not in the cache, and returns those to use.
    ``report`` gets the log, one call at a time. ``on_sandbox(id, True)`` is called when a step's sandbox is about to start and
    ``on_sandbox(id, False)`` when it has ended, for quotas: what the first raises ends the build.
    ``run_start`` also starts the image once with its start command and waits until its ready command says 0.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        owner: str = "",
        name: str = "",
        archives: ArchiveStore | None = None,
        limits: BuildLimits | None = None,
        network: Network | None = None,
        ceiling: Ceiling | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: Path | None = None,
        cache: PackageCache | None = None,
        runtime: str | None = None,
        report: Callable[[LogEntry], None] | None = None,
        provide_base: ProvideBase = ensure_image,
        complete: Callable[[Surroundings], Surroundings] | None = None,
        on_sandbox: Callable[[str, bool], None] | None = None,
        run_start: bool = False,
    ) -> None:
        self._plan, self._owner, self._name = plan, owner, name
        self._archives, self._limits = archives, limits or BuildLimits()
        if name:
            engine.named(owner, name)
        if len(plan.steps) > self._limits.steps:
            raise invalid(f"The plan has {len(plan.steps)} steps; at most {self._limits.steps} are allowed.", "Join some.")
        self._surroundings = Surroundings(
            limits=self._limits.sandbox,
            network=network or Network.none(),
            ceiling=ceiling,
            env=dict(env or {}),
            ca_bundle=ca_bundle,
            cache=cache,
            runtime=runtime,
            on_sandbox=on_sandbox or _ignore,
        )
        self._log = BuildLog(report or _ignore, self._limits.log_bytes)
        self._run_start, self._provide_base, self._complete = run_start, provide_base, complete
        self._cancel = CancelToken()
        self._deadline = 0.0
        self._steps_run = self._steps_cached = 0

    def cancel(self) -> None:
        """End the build soon: ``run`` raises ``cancelled``. May be called at any time, more than once, also after its end."""
        self._cancel.cancel()

    def run(self) -> BuiltImage:
        """Carry out the plan and return the image, which has ``name`` in the owner's ``ImageStore`` then, if one was given.

        Raises SandboxError: ``image_build_failed`` (its ``result`` is {"step": ..., "exit_code": ... or None, "log": last lines}),
        ``timeout`` and ``cancelled`` (with the same ``result``), ``image_not_found`` for the base, ``invalid_arguments`` for the
        plan, ``capacity`` if the image would be too large, and the engine's errors. Layers of finished steps stay in the cache.
        """
        self._deadline = time.monotonic() + self._limits.timeout_seconds
        client = connect(ENGINE_SECONDS)
        if is_podman(client):
            raise SandboxError(
                ErrorCode.operation_not_supported,
                "Podman does not keep the marks by which layers of builds are found, counted and kept apart by owner.",
                "Build it on a Docker Engine and carry it here with `docker save` and `podman load`, or use `podman build`.",
            )
        try:
            return self._carry_out(client)
        except StepFailedError as error:
            self._fail(error, "")
        except SandboxError as error:
            if self._cancel.cancelled and error.code is not ErrorCode.cancelled:
                raise self._cancelled() from error
            error.result = error.result or self._result(None)
            raise

    def _carry_out(self, client: docker.DockerClient) -> BuiltImage:
        plan, owner = self._plan, self._owner
        if self._name:
            engine.check_replaceable(client, owner, self._name)
        image = self._find_base(client)
        configuration, force = Configuration.of_image(image.config), plan.force
        for number, step in enumerate(plan.steps, 1):
            self._log.begin(str(number))
            if isinstance(step, Env | Workdir | User):
                self._log.say(str(step))
                configuration = configuration.after(step)
                continue
            step = expand_copy(step, configuration) if isinstance(step, Copy) else step
            force = force or step.force
            image = self._layer(client, image, step, configuration, force)
            configuration = configuration.after(step)
        self._log.begin(FINALIZE)
        image = self._finish(client, image, configuration, force)
        if self._run_start and (plan.start_command or plan.ready_command):
            self._try_start(image, configuration)
        if self._name:
            engine.give_name(client, image.id, engine.named(owner, self._name))
        self._log.say(f"built {image.id.removeprefix('sha256:')[:12]}, {size(image.bytes)}")
        return BuiltImage(
            id=image.id,
            bytes=image.bytes,
            added_bytes=engine.added_bytes(client, image, self._owner),
            steps_run=self._steps_run,
            steps_cached=self._steps_cached,
            env=dict(configuration.env),
            workdir=configuration.workdir,
            user=configuration.user,
            start_command=plan.start_command,
            ready_command=plan.ready_command,
        )

    def _find_base(self, client: docker.DockerClient) -> EngineImage:
        base = self._plan.base
        self._log.say(f"FROM {base}")
        # Before anything is built for it: one of another owner is as good as missing.
        found = engine.inspect(client, base)
        if found is None:
            found = engine.inspect(client, self._provide_base(client, base, report=self._log.say))
        image = engine.check_usable(found, self._owner, base)
        layers = sum(isinstance(step, Run | Copy) for step in self._plan.steps) + 2
        if len(image.layers) + layers > engine.MOST_LAYERS:
            raise invalid(
                f"The image would have {len(image.layers) + layers} layers; an engine takes {engine.MOST_LAYERS}.", "Join steps."
            )
        return image

    def _layer(
        self, client: docker.DockerClient, parent: EngineImage, step: Run | Copy, configuration: Configuration, force: bool
    ) -> EngineImage:
        """Return the image after a step, from the cache if it is there."""
        path, digest = self._archive(step) if isinstance(step, Copy) else (Path(), "")
        key = layer_key(self._owner, parent.id, self._plan, configuration, step, digest)
        self._log.say(str(step))
        with self._alone(key):
            cached = None if force else engine.find_cached(client, self._owner, key)
            if cached is not None:
                self._steps_cached += 1
                self._log.say(IN_CACHE)
                return cached
            self._steps_run += 1
            try:
                return self._run_and_commit(client, parent, key, configuration, step, path)
            except StepFailedError as error:
                self._fail(error, str(step))

    def _run_and_commit(
        self,
        client: docker.DockerClient,
        parent: EngineImage,
        key: str,
        configuration: Configuration,
        step: Run | Copy | MakeFolders,
        path: Path,
    ) -> EngineImage:
        allowed = self._limits.step_timeout_seconds
        with self._sandbox(parent.id) as sandbox:
            sandbox.make_folders(configuration.folders)
            match step:
                case Copy():
                    sandbox.copy(step, path, configuration, allowed)
                case Run():
                    seconds = allowed if step.timeout_seconds is None else min(step.timeout_seconds, allowed)
                    sandbox.run(step, self._plan.shell, configuration, seconds)
            self._check()
            container = sandbox.env.container_id
            before = engine.added_bytes(client, parent, self._owner)
            written = engine.container_bytes(client, container)
            self._check_size(before, written)
            self._check_disk(written)
            settings = engine.settings_of(parent, self._plan, configuration, finished=False)
            image = self._commit(client, container, key, parent, settings)
        # What it wrote between the look at its size and the commit counts as well.
        try:
            written = engine.added_bytes(client, image, self._owner) - before
            self._check_size(before, written, take=True)
        except SandboxError:
            engine.untag(client, self._owner, engine.cache_tag(key))
            raise
        return image

    def _commit(
        self, client: docker.DockerClient, container: str, key: str, parent: EngineImage, settings: Mapping[str, object]
    ) -> EngineImage:
        for attempt in range(_COMMIT_ATTEMPTS):
            try:
                return engine.commit(client, container, self._owner, key, parent, settings)
            except SandboxError as error:
                # Processes that begin and end can prevent the pause.
                if attempt + 1 == _COMMIT_ATTEMPTS or not error.retryable or self._cancel.cancelled:
                    raise
        raise AssertionError

    def _finish(
        self, client: docker.DockerClient, parent: EngineImage, configuration: Configuration, force: bool
    ) -> EngineImage:
        """Return the last layer with its configuration, as an image of its own: no later build changes it."""
        name = f"gamebox-{secrets.token_hex(8)}"
        with engine.unstarted(client, parent.id, name) as container:
            missing = tuple(each for each in configuration.folders if not engine.has_path(client, container, each[0]))
        if missing:
            folders = MakeFolders(missing)
            with self._alone(key := layer_key(self._owner, parent.id, self._plan, configuration, folders, "")):
                cached = None if force else engine.find_cached(client, self._owner, key)
                parent = cached or self._run_and_commit(client, parent, key, configuration, folders, Path())
        key = final_key(self._owner, parent.id, configuration, self._plan)
        with self._alone(key):
            if (cached := engine.find_cached(client, self._owner, key)) is not None:
                return cached
            settings = engine.settings_of(parent, self._plan, configuration, finished=True)
            with engine.unstarted(client, parent.id, name) as container:
                return self._commit(client, container, key, parent, settings)

    def _try_start(self, image: EngineImage, configuration: Configuration) -> None:
        """Start the image once as a sandbox of it will be started, and wait until it is ready."""
        plan, until = self._plan, time.monotonic() + self._limits.ready_seconds
        with self._sandbox(image.id) as sandbox:
            ident = ""
            if plan.start_command:
                ident = sandbox.start(plan.start_command, plan.shell, configuration)
                self._log.say(f"started {plan.start_command}")
            offset = 0
            while plan.ready_command:
                self._check()
                left = until - time.monotonic()
                if left <= 0:
                    hint = "Correct the start command or the ready command, or give it more time."
                    raise StepFailedError(f"it was not ready within {self._limits.ready_seconds:.0f} seconds", hint)
                status = sandbox.poll(plan.ready_command, plan.shell, configuration, left)
                offset = sandbox.report_output(ident, offset)
                if status == 0:
                    break
                time.sleep(_READY_TURN_SECONDS)
            sandbox.report_output(ident, offset)

    def _archive(self, step: Copy) -> tuple[Path, str]:
        if self._archives is None:
            raise invalid(f"{step} needs an archive, and the build has none.", "Give the store with its archives.")
        return self._archives.path(step.archive), self._archives.digest(step.archive)

    @contextlib.contextmanager
    def _sandbox(self, image_id: str) -> Iterator[StepSandbox]:
        self._check()
        if self._complete is not None:
            self._surroundings, self._complete = self._complete(self._surroundings), None
        with step_sandbox(self._surroundings, image_id, self._log, self._cancel, self._deadline) as sandbox:
            yield sandbox

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Hold the key: of builds that need the same layer one makes it, and the others find it then."""
        while True:
            self._check()
            with locks.try_exclusive(f"build-{key}") as held:
                if held:
                    yield
                    return
            time.sleep(_TURN_SECONDS)

    def _check(self) -> None:
        """Raise if the build was cancelled or has no time left."""
        if self._cancel.cancelled:
            raise self._cancelled()
        if time.monotonic() > self._deadline:
            raise StepFailedError(
                f"the build did not end within {self._limits.timeout_seconds:.0f} seconds",
                "Build again: steps that ended are in the cache.",
                code=ErrorCode.timeout,
            )

    def _check_size(self, before: int, written: int, *, take: bool = False) -> None:
        """Raise ``capacity`` if a layer of ``written`` bytes is too much on one that has ``before`` bytes over the base.

        ``take`` takes its bytes from the room of new layers.
        """
        most, room = self._limits.image_bytes, self._limits.room
        if before + written > most:
            problem = f"add {size(before + written)} to the base; an image may add {size(most)}"
        elif room is not None and not (room.take(written) if take else written <= room.left):
            problem = f"add a new layer of {size(written)}; {size(room.left)} are left for layers"
        else:
            return
        raise SandboxError(
            ErrorCode.capacity,
            f"The steps up to {self._log.step} {problem}.",
            "Remove in the same step what the image does not need, such as caches of package managers.",
            result=self._result(None),
        )

    def _check_disk(self, written: int) -> None:
        """Raise StepFailedError for a step that wrote too much faster than its sandbox looks at its disk."""
        most = self._limits.sandbox.files_bytes
        if written > most:
            raise StepFailedError(f"it wrote {size(written)}, and a step may write {size(most)}", WROTE_TOO_MUCH)

    def _cancelled(self) -> SandboxError:
        return SandboxError(
            ErrorCode.cancelled, f"The build was cancelled in step {self._log.step}.", "", result=self._result(None)
        )

    def _result(self, exit_code: int | None) -> dict[str, object]:
        return {"step": self._log.step, "exit_code": exit_code, "log": list(self._log.tail)}

    def _fail(self, error: StepFailedError, what: str) -> NoReturn:
        self._log.flush()
        name = f"Step {self._log.step}" if self._log.step.isdecimal() else f"The step {self._log.step!r}"
        about = f" ({what[:200]})" if what else ""
        message = f"{name}{about} failed: {error.reason}."
        self._log.say(message, "error")
        failed = SandboxError(error.code, message, error.hint, result=self._result(error.exit_code))
        cause = error.__cause__
        raise failed from cause if isinstance(cause, SandboxUnavailableError) else error


def _ignore(*_: object) -> None:
    """Report nothing."""
