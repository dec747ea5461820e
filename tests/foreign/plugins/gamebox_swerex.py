"""A plugin of pytest: the runtime of SWE-ReX's tests is a sandbox of the service at GAMEBOX_URL, over its wire.

Some tests look at the host's files, for their own server runs there: ``tmp_path`` writes texts to both, and reads the sandbox's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import swerex.runtime.local
import swerex.runtime.remote

from sandbox import RemoteEnvironment

_original = swerex.runtime.remote.RemoteRuntime.__init__


@functools.cache
def _sandbox() -> RemoteEnvironment:
    return RemoteEnvironment().start()


@functools.cache
def _token() -> str:
    """Return the token of the sandbox: with it, the client knows nothing but the address of the service."""
    headers = {"X-API-Key": os.environ["GAMEBOX_API_KEY"]}
    answer = httpx.post(f"{os.environ['GAMEBOX_URL']}/wire/swerex/{_sandbox().id}/token", headers=headers)
    return str(answer.raise_for_status().json()["auth_token"])


def _init(self: Any, **options: Any) -> None:
    if "port" in options:  # their own server: another address is meant to be one that nobody answers at
        options = {"host": os.environ["GAMEBOX_URL"], "port": None, "auth_token": _token()}
    _original(self, **options)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a test was answered by SWE-ReX's own server")


setattr(swerex.runtime.remote.RemoteRuntime, "__init__", _init)  # noqa: B010
for _name in ("is_alive", "create_session", "run_in_session", "execute", "read_file", "write_file", "upload"):
    setattr(swerex.runtime.local.LocalRuntime, _name, _refuse)


class BothPath(type(Path())):  # type: ignore[misc]
    """A path of the host whose texts are in the sandbox, too."""

    def write_text(self, data: str, *args: Any, **options: Any) -> int:
        """Write on the host and in the sandbox."""
        _sandbox().upload(data.encode(), str(self)).unwrap()
        return int(super().write_text(data, *args, **options))

    def read_text(self, *_: Any, **__: Any) -> str:
        """Read the file of the sandbox."""
        return (_sandbox().download(str(self)).unwrap().content or b"").decode()


@pytest.fixture(autouse=True)
def _both(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames:
        request.node.funcargs["tmp_path"] = BothPath(request.getfixturevalue("tmp_path"))


@pytest.fixture(scope="session", autouse=True)
def _end() -> Iterator[None]:
    yield
    _sandbox().close()
