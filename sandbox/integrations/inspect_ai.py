"""A sandbox for evaluations of inspect_ai: ``sandbox="gamebox"``, found by its entry point.

A sample has a sandbox on this host's engine, or of the service at GAMEBOX_URL if that is set. Inspect has to run on asyncio.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from sandbox import AsyncEnvironment, AsyncRemoteEnvironment, DockerEnvironment, ErrorCode, Failure, Limits, Network
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.operations import RunResult

# What file tools do not write is written by a command of the same user, where its own rights allow it.
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"'
_GONE = frozenset({ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_not_found})
_EXIT_CODES: Mapping[str, int] = {
    ErrorCode.program_not_found: 127,
    ErrorCode.arguments_too_long: 126,
    ErrorCode.working_directory_invalid: 126,
    ErrorCode.user_not_found: 1,
}
_FILE_ERRORS: Mapping[str, type[OSError]] = {
    ErrorCode.path_not_found: FileNotFoundError,
    ErrorCode.permission_denied: PermissionError,
    ErrorCode.path_outside_roots: PermissionError,
    ErrorCode.is_a_directory: IsADirectoryError,
    ErrorCode.timeout: TimeoutError,
}


class GameboxConfig(BaseModel):
    """The configuration of a sandbox: ``sandbox=("gamebox", GameboxConfig(image="python:3.12"))``.

    ``allow`` are rules of the network, such as "packages.example.com"; without any there is no network. ``limits`` are fields of
    ``sandbox.Limits``. With the profile "default" Inspect cannot act as root, and its tools share the user of the agent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    image: str = DEFAULT_IMAGE
    profile: Literal["default", "root-on-request", "root"] = "root-on-request"
    allow: tuple[str, ...] = ()
    env: dict[str, str] = {}
    limits: dict[str, Any] = {}
    pull: bool = False


@sandboxenv(name="gamebox")
class GameboxSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]  # it is not installed where types are checked
    """One sandbox of a sample. Commands without a user run as uid 1000, in /workspace."""

    def __init__(self, environment: AsyncEnvironment) -> None:
        super().__init__()
        self.environment = environment

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:  # noqa: ARG003
        """Start the sandbox of a sample. Raises SandboxError."""
        if isinstance(config, str):
            raise ValueError(f"The sandbox gamebox has no configuration file ({config}). Give a GameboxConfig.")  # noqa: TRY004
        environment = _make(config or GameboxConfig())
        await environment.start()
        return {"default": cls(environment)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool  # noqa: ARG003
    ) -> None:
        """End the sandboxes of a sample. They end with this process, too, and those of a service by their time to live."""
        for each in environments.values():
            await each.as_type(cls).environment.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log holds."""
        return GameboxConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return how many samples run at once: on this host twice its processors, on a service as many as it allows."""
        return None if os.environ.get("GAMEBOX_URL") else 2 * (os.cpu_count() or 1)

    def default_polling_interval(self) -> float:
        """Return how often Inspect looks whether a program in the sandbox wants something, in seconds."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109
        timeout_retry: bool = True,  # noqa: ARG002  # a timeout here is one: nothing of the command is left running
        concurrency: bool = True,  # noqa: ARG002
    ) -> ExecResult[str]:
        """Run a command; if the task is cancelled, it is killed with all it started."""
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        limits = self.environment.environment.limits  # type: ignore[attr-defined]  # both kinds have them
        answer = await self.environment.run(
            argv=cmd,
            stdin="" if input is None else input,
            cwd=cwd,
            env=env,
            user=user,
            session=None,
            timeout_seconds=limits.max_timeout_seconds if timeout is None else timeout,
            keep_output_bytes=min(2 * most + 2, limits.most_kept_bytes),
        )
        if isinstance(answer, Failure):
            return _failed(answer, user)
        result = answer.unwrap()
        _check_size(result, most)
        status = result.shell_status
        return ExecResult(status == 0, 1 if status is None else status, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file as the sandbox's user, with the folders above it."""
        data = contents.encode() if isinstance(contents, str) else contents
        answer = await self.environment.upload(data, file)
        if isinstance(answer, Failure) and answer.code is ErrorCode.path_outside_roots:
            written = await self.exec(["sh", "-c", _WRITE, "sh", file], input=data)
            if not written.success:
                kind = IsADirectoryError if "directory" in written.stderr.lower() else PermissionError
                raise kind(f"{file}: {written.stderr.strip()}")
        elif isinstance(answer, Failure):
            _raise_file_error(answer, file)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file as the sandbox's user."""
        known = await self.environment.stat(file)
        if isinstance(known, Failure):
            _raise_file_error(known, file)
        found = known.unwrap()
        if found.type == "directory":
            raise IsADirectoryError(f"{file} is a directory")
        if (found.size_bytes or 0) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        answer = await self.environment.download(file)
        if isinstance(answer, Failure):
            _raise_file_error(answer, file)
        data = answer.unwrap().content or b""
        return data.decode() if text else data


def _make(config: GameboxConfig) -> AsyncEnvironment:
    options: dict[str, Any] = {
        "image": config.image,
        "profile": config.profile,
        "network": Network.allow(*config.allow) if config.allow else Network.none(),
        "env": config.env,
        "limits": Limits(**{"idle_seconds": None, **config.limits}),
        "read_roots": ["/"],
        "track_changes": False,
    }
    if os.environ.get("GAMEBOX_URL"):
        return AsyncRemoteEnvironment(**options)
    return AsyncEnvironment(DockerEnvironment(**options, pull=config.pull))


def _check_size(result: RunResult, most: int) -> None:
    if result.truncated or max(len(result.stdout_bytes), len(result.stderr_bytes)) > most:
        shown = result.output.encode()[:most].decode(errors="ignore")
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, shown)


def _failed(failure: Failure[RunResult], user: str | None) -> ExecResult[str]:
    """Return the result of a command that did not run because of what it was; anything else is raised."""
    if failure.code in _EXIT_CODES:
        return ExecResult(False, _EXIT_CODES[failure.code], "", f"{failure.error}\n")
    if failure.code is ErrorCode.timeout:
        raise TimeoutError(failure.error)
    if failure.code is ErrorCode.program_not_executable:
        raise PermissionError(failure.error)
    if failure.code is ErrorCode.user_not_allowed:
        raise SandboxUserUnsupportedError(f"{user}: {failure.error} Use the profile root-on-request.")
    if failure.code in _GONE:
        raise SandboxUnavailableError(failure.error)
    raise RuntimeError(f"{failure.error} {failure.hint}")


def _raise_file_error(failure: Failure[Any], file: str) -> NoReturn:
    if failure.code in _GONE:
        raise SandboxUnavailableError(failure.error)
    raise _FILE_ERRORS.get(failure.code, OSError)(f"{file}: {failure.error}")
