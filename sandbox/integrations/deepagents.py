"""A backend for deepagents (LangChain): ``create_deep_agent(backend=GameboxBackend())``.

It has a sandbox on this host's engine, or of the service at GAMEBOX_URL if that is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

try:
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: install it with pip install 'gamebox[deepagents]'", name=error.name) from error

from sandbox import (
    AsyncEnvironment,
    DockerEnvironment,
    Envelope,
    ErrorCode,
    Failure,
    RemoteEnvironment,
    SandboxUnavailableError,
)
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import RunResult

# What a shell shows for a command that "timeout" ended, and for a folder or program it could not use.
_TIMEOUT, _NOT_STARTED = 124, 126
# Files are read as the output of a command, in base64: what deepagents itself keeps of it is far less.
_OUTPUT_BYTES = 16 << 20
_FILE_ERRORS: Mapping[str, str] = {
    ErrorCode.path_not_found: "file_not_found",
    ErrorCode.permission_denied: "permission_denied",
    ErrorCode.path_outside_roots: "permission_denied",
    ErrorCode.is_a_directory: "is_directory",
    ErrorCode.not_a_directory: "invalid_path",
    ErrorCode.path_invalid: "invalid_path",
}
_GONE = frozenset({ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_not_found})


class GameboxBackend(BaseSandbox):  # type: ignore[misc]  # deepagents is not installed where the types are checked
    """Files and commands of a deep agent, in one sandbox; use it as a context manager, or ``close`` it.

    ``environment`` is a sandbox that is started already and stays open; without it one is made of ``image`` and ``options``,
    which are those of ``DockerEnvironment``, or of ``RemoteEnvironment`` if GAMEBOX_URL is set. It ends with this process, and one
    of a service by its time to live. The image needs a POSIX shell and Python 3, with which deepagents reads and edits files.
    Raises SandboxError.
    """

    def __init__(
        self,
        environment: SandboxedEnvironment | RemoteEnvironment | None = None,
        *,
        image: str = DEFAULT_IMAGE,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> None:
        self._owns = environment is None
        if environment is None:
            kind = RemoteEnvironment if os.environ.get("GAMEBOX_URL") else DockerEnvironment
            # Deep agents read the whole file system, as the sandbox's user may.
            environment = kind(image, **{"read_roots": ["/"], "track_changes": False, **options}).start()
        self.environment = environment
        self._awaited = AsyncEnvironment(environment)
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox if it was made here; may be called more than once."""
        if self._owns:
            self.environment.close()

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        known = getattr(self.environment, "id", None)
        return str(known or f"gamebox-{id(self.environment):x}")

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command in a clean session: nothing carries over to the next."""
        return _response(self.environment.run(command, **self._options(timeout)))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Run a shell command without a thread; if the task is cancelled, it is killed with all it started."""
        return _response(await self._awaited.run(command, **self._options(timeout)))

    def _options(self, timeout: int | None) -> Any:
        seconds = timeout or self._timeout_seconds
        if timeout == 0:  # deepagents: without a limit
            seconds = self.environment.limits.max_timeout_seconds
        keep = min(_OUTPUT_BYTES, self.environment.limits.most_kept_bytes)
        return {"session": None, "timeout_seconds": seconds, "keep_output_bytes": keep}

    def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, with the folders above them."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def download_files(self, paths: Sequence[str]) -> list[FileDownloadResponse]:
        """Read files whole."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        known = self.environment.stat(path)
        if known.ok and known.unwrap().type == "directory":
            return "is_directory"
        return _error(self.environment.upload(data, path))

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        known = self.environment.stat(path)
        if isinstance(known, Failure):
            return FileDownloadResponse(path=path, error=_error(known))
        if known.unwrap().type == "directory":
            return FileDownloadResponse(path=path, error="is_directory")
        answer = self.environment.download(path)
        if isinstance(answer, Failure):
            return FileDownloadResponse(path=path, error=_error(answer))
        return FileDownloadResponse(path=path, content=answer.unwrap().content or b"")


def _response(answer: Envelope[RunResult]) -> ExecuteResponse:
    """Return what a command came to. A timeout is a result with the output so far; a sandbox that is gone raises."""
    result = answer.result
    output = "" if result is None else result.output
    truncated = result is not None and result.truncated
    if isinstance(answer, Failure):
        _raise_if_gone(answer)
        said = f"[{answer.error} {answer.hint}]".replace(" ]", "]")
        status = _TIMEOUT if answer.code is ErrorCode.timeout else _NOT_STARTED
        return ExecuteResponse(output="\n".join(part for part in (output, said) if part), exit_code=status, truncated=truncated)
    return ExecuteResponse(output=output, exit_code=answer.unwrap().shell_status, truncated=truncated)


def _error(answer: Envelope[Any]) -> str | None:
    if not isinstance(answer, Failure):
        return None
    _raise_if_gone(answer)
    return _FILE_ERRORS.get(answer.code, answer.error)


def _raise_if_gone(answer: Failure[Any]) -> None:
    if answer.code in _GONE:
        raise SandboxUnavailableError(answer.reason or "closed", answer.error, answer.hint)
