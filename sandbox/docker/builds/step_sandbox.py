"""The sandbox of one step: run a command, or copy an archive's files, with everything written to the root file system."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from sandbox.docker.container.profiles import BUILD
from sandbox.docker.environment import DockerEnvironment
from sandbox.docker.images.runtime import ARGV
from sandbox.envelope import Notice
from sandbox.environment.base import cancelling
from sandbox.errors import ErrorCode
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.network.ceiling import Ceiling
from sandbox.network.policy import Network
from sandbox.operations.commands import RunResult
from sandbox.packages.cache import PackageCache
from sandbox.pipe.watching import CancelToken

from .configuration import Configuration
from .log import BuildLog
from .step_hints import BY_LIMIT, hint_for_step
from .steps import Copy, Run

_ARCHIVE = f"{BUILD.workspace}/archive"
_LEAST_SECRET = 8
# After the end of the build: for the commit of its last layer.
_END_SECONDS = 1800.0
# Notices that say why a step fails, or why its image may lack something; the others are for models.
_REASONS = ("no_space", "out_of_memory", "file_too_large", "too_many_processes", "too_many_open_files", "cpu_limit")
_WARNINGS = (*_REASONS, "network_denied", "network_cut", "write_lost", "disk_nearly_full", "service_refused")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all sandboxes of a build have in common. ``on_sandbox`` is told of each one that starts and ends.

    ``env`` are variables that may be secret, ``variables`` others, which are shown as they are.
    """

    limits: Limits
    network: Network
    ceiling: Ceiling | None
    env: Mapping[str, str]
    ca_bundle: Path | None
    runtime: str | None
    on_sandbox: Callable[[str, bool], None]
    cache: PackageCache | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class StepFailedError(Exception):
    """A step did not do what it was to do: why, a hint, and the exit status of its command if it had one."""

    def __init__(
        self, reason: str, hint: str = "", exit_code: int | None = None, code: ErrorCode = ErrorCode.image_build_failed
    ) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.exit_code, self.code = reason, hint, exit_code, code


class StepSandbox:
    """A started sandbox of a build. ``left`` returns the seconds that the build has left."""

    def __init__(self, env: DockerEnvironment, log: BuildLog, cancel: CancelToken, left: Callable[[], float]) -> None:
        self.env, self._log, self._cancel, self._left = env, log, cancel, left
        self._notices: tuple[Notice, ...] = ()

    def make_folders(self, folders: tuple[tuple[str, str], ...]) -> None:
        """Make working directories. Raises StepFailedError and SandboxError."""
        if folders:
            self._program({"folders": folders}, 60.0)

    def copy(self, step: Copy, path: Path, configuration: Configuration, seconds: float) -> None:
        """Copy files of the archive at ``path``. Raises StepFailedError and SandboxError."""
        with cancelling(self._cancel):
            sent = self.env.upload(path, _ARCHIVE, mode=0o600)
        if not sent.ok:
            raise StepFailedError(f"the archive could not be sent: {sent.error}", sent.hint)
        request = {
            "archive": _ARCHIVE,
            "bytes": self.env.limits.files_bytes,
            "source": step.source,
            "destination": configuration.absolute(step.destination),
            "owner": step.owner,
            "mode": step.mode,
        }
        answer = self._program(request, seconds)
        self._log.say(f"files: {answer['files']}, bytes: {answer['bytes']}")

    def run(self, step: Run, shell: tuple[str, ...], configuration: Configuration, seconds: float) -> None:
        """Run a command and report its output. Raises StepFailedError and SandboxError."""
        argv = step.argv or (*shell, step.command)
        user = step.user or configuration.user
        result = self._run(
            argv,
            seconds,
            env={**dict(step.env), **configuration.env},
            cwd=configuration.workdir,
            user=_user(user),
            on_output=self._log.output,
        )
        self._log.flush()
        for notice in self._notices:
            if notice.code in _WARNINGS:
                self._log.say(notice.message, "warn")  # its hint is for a model in a sandbox
        if result.exit_code != 0:
            refused = any(notice.code == "network_denied" for notice in self._notices)
            raise self._failed("its command", result, hint_for_step(result.exit_code, self._log.tail, refused=refused))
        if result.left_running:
            self._log.say(f"ending {result.left_running} processes that the step left running: an image has no processes", "warn")
            self.env.kill(result.id)

    def poll(self, command: str, shell: tuple[str, ...], configuration: Configuration, seconds: float) -> int | None:
        """Run a command once without reporting its output, and return its exit status."""
        with contextlib.suppress(StepFailedError):
            return self._run(
                (*shell, command), seconds, env=dict(configuration.env), cwd=configuration.workdir, user=_user(configuration.user)
            ).exit_code
        return None

    def start(self, command: str, shell: tuple[str, ...], configuration: Configuration) -> str:
        """Start a command in the background and return its id. Raises SandboxError."""
        return self.env.run(
            argv=(*shell, command),
            env=dict(configuration.env),
            cwd=configuration.workdir,
            user=_user(configuration.user),
            background=True,
            session=None,
        ).unwrap().id

    def report_output(self, ident: str, offset: int) -> int:
        """Report what a command in the background has printed since ``offset``, and return the next offset; "" is no command."""
        if not ident:
            return offset
        logs = self.env.logs(ident, offset=offset)
        if logs.ok and logs.result is not None:
            self._log.output("stdout", logs.result.content)
            return logs.result.next_offset
        return offset

    def _program(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        result = self._run((*ARGV, "-c", _program()), seconds, stdin=json.dumps(request), cwd="/")
        try:
            answer = json.loads(result.stdout.strip().rpartition("\n")[2])
        except ValueError:
            raise self._failed("the program that copies files", result, "Copy less at once.") from None
        if not isinstance(answer, dict) or "error" in answer:
            reason = str(answer.get("error", "") if isinstance(answer, dict) else "")[:1000]
            raise StepFailedError(reason.rstrip(".") or "the program that copies files failed", "Correct the archive or the step.")
        return {name: int(answer.get(name, 0)) for name in ("files", "bytes")}

    def _failed(self, what: str, result: RunResult, hint: str) -> StepFailedError:
        """Return the error for a program that failed, with the limit that it hit if it did."""
        why = next((notice for notice in self._notices if notice.code in _REASONS), None)
        end = f"signal {result.signal}" if result.exit_code is None else f"exit status {result.exit_code}"
        if why is None:
            return StepFailedError(f"{what} ended with {end}", hint, result.exit_code)
        reason = f"{why.message[:1].lower()}{why.message[1:].rstrip('.')} ({end})"
        return StepFailedError(reason, BY_LIMIT.get(why.code, why.hint), result.exit_code)

    def _run(self, argv: tuple[str, ...], seconds: float, **options: Any) -> RunResult:
        left = self._left()
        allowed = min(seconds, left)
        if allowed <= 0:
            raise _out_of_time(0)
        envelope = self.env.run(
            argv=argv, timeout_seconds=max(0.1, allowed), session=None, cancel=self._cancel, **options
        )
        self._notices = envelope.notices
        if envelope.ok and envelope.result is not None:
            return envelope.result
        self._log.flush()
        if envelope.code is ErrorCode.timeout:
            raise _out_of_time(allowed)
        if envelope.code in (ErrorCode.cancelled, ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed):
            envelope.unwrap()
        raise StepFailedError(envelope.error.rstrip("."), envelope.hint, code=ErrorCode.image_build_failed)


@contextlib.contextmanager
def step_sandbox(
    surroundings: Surroundings, image_id: str, log: BuildLog, cancel: CancelToken, deadline: float
) -> Iterator[StepSandbox]:
    """Start the sandbox of one step, and end it after the block. Raises SandboxError."""
    left = max(0.0, deadline - time.monotonic())
    limits = replace(
        surroundings.limits,
        max_timeout_seconds=max(surroundings.limits.max_timeout_seconds, left + 1.0),
        idle_seconds=None,
        lifetime_seconds=left + _END_SECONDS,
    )
    secret = {name: value for name, value in surroundings.env.items() if len(value.strip()) >= _LEAST_SECRET}
    env = DockerEnvironment(
        image_id,
        limits=limits,
        network=surroundings.network,
        env={**surroundings.variables, **{name: value for name, value in surroundings.env.items() if name not in secret}},
        ca_bundle=surroundings.ca_bundle,
        cache=surroundings.cache,
        runtime=surroundings.runtime,
        profile=BUILD,
        track_changes=False,
        report=lambda line: log.say(line, "debug"),
    )
    for name, value in secret.items():
        env.secret(name, value)
    env.ceiling = surroundings.ceiling
    ident = env.backend.name
    surroundings.on_sandbox(ident, True)
    try:
        with cancel.calling(env.close):
            env.start()
        yield StepSandbox(env, log, cancel, lambda: deadline - time.monotonic())
    finally:
        env.close(wait=True)
        surroundings.on_sandbox(ident, False)


def _user(name: str) -> str | None:
    return None if name in ("root", "0", "0:0", "root:root") else name.partition(":")[0]


def _out_of_time(seconds: float) -> StepFailedError:
    hint = "Make the step faster, or give the build more time."
    reason = f"it did not end within {seconds:.0f} seconds" if math.isfinite(seconds) and seconds else "the build has no time left"
    return StepFailedError(reason, hint, code=ErrorCode.timeout)


@functools.cache
def _program() -> str:
    return (Path(__file__).parent / "copy_program.py").read_text(encoding="utf-8")
