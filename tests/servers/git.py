"""Git over smart HTTP: ``git http-backend`` behind a Site."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .site import SiteHandler

SAFE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}


def repository(folder: Path, files: dict[str, str]) -> Path:
    """A bare repository of one commit with these files; answers where it is."""
    work, bare = folder / "work", folder / "project.git"

    def git(*words: str | Path) -> None:
        identity = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
        subprocess.run(["git", *identity, *words], check=True, capture_output=True, env=SAFE)

    git("init", "-q", "-b", "main", work)
    for path, text in files.items():
        (work / path).write_text(text)
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-q", "-m", "first")
    git("clone", "-q", "--bare", work, bare)
    git("-C", bare, "config", "http.receivepack", "true")
    return bare


def handler(root: Path) -> type[SiteHandler]:
    """For a Site that serves the repositories below ``root``, for reading and pushing."""

    class Git(SiteHandler):
        def do_GET(self) -> None:  # noqa: N802  as http.server calls it
            self.note()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            environ = {
                **SAFE, "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "REQUEST_METHOD": self.command,
                "PATH_INFO": path, "QUERY_STRING": query, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)), "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "REMOTE_USER": "tests", "REMOTE_ADDR": "127.0.0.1",
            }  # fmt: skip
            ran = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environ, check=False)
            head, _, content = ran.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

    return Git
