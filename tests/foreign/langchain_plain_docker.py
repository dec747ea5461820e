"""The sandbox suite of langchain-tests on plain Docker, without Gamebox: what fails here is the suite's, not that of a sandbox."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

IMAGE = "gamebox/base"


class DockerBackend(BaseSandbox):  # type: ignore[misc]  # it is installed only where it runs
    """As little as deepagents asks for, by the program ``docker``."""

    def __init__(self, container: str) -> None:
        self._container = container

    @property
    def id(self) -> str:
        """The id of the container."""
        return self._container

    def _docker(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", *arguments], capture_output=True, check=False, **options)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command."""
        done = self._docker("exec", self._container, "sh", "-c", f"{{ {command}\n}} 2>&1", timeout=timeout)
        return ExecuteResponse(output=done.stdout.decode(errors="replace"), exit_code=done.returncode, truncated=False)

    def upload_files(self, files: Any) -> list[FileUploadResponse]:
        """Write files with ``docker exec``."""
        return [FileUploadResponse(path=path, error=self._write(path, data)) for path, data in files]

    def _write(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        done = self._docker("exec", "-i", self._container, "sh", "-c", script, "sh", path, input=data)
        if done.returncode == 0:
            return None
        return "is_directory" if b"directory" in done.stderr.lower() else "permission_denied"

    def download_files(self, paths: Any) -> list[FileDownloadResponse]:
        """Read files as the user, as tar packs them: ``docker cp`` would read what the user may not."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        script = '[ -e "$1" ] || exit 3; [ ! -d "$1" ] || exit 4; [ -r "$1" ] || exit 5; tar -cf - -C / "${1#/}"'
        done = self._docker("exec", self._container, "sh", "-c", script, "sh", path)
        errors = {3: "file_not_found", 4: "is_directory", 5: "permission_denied"}
        if done.returncode:
            return FileDownloadResponse(path=path, error=errors.get(done.returncode, "permission_denied"))
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            member = archive.extractfile(archive.getmembers()[0])
            assert member is not None
            return FileDownloadResponse(path=path, content=member.read())


class TestPlainDocker(SandboxIntegrationTests):  # type: ignore[misc]
    """The same tests, on a container that Docker alone has made."""

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[DockerBackend]:
        start = ["docker", "run", "--rm", "-d", "--init", "--user", "1000", "-w", "/tmp", IMAGE, "sleep", "1800"]
        container = subprocess.run(start, capture_output=True, text=True, check=True).stdout.strip()
        try:
            yield DockerBackend(container)
        finally:
            subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=True)
