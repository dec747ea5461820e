"""What is named as an archive may be anything that has a name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandbox import SandboxError
from sandbox.docker.local_images.archives import _opened
from sandbox.errors import ErrorCode


def test_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with _opened(tmp_path / "file") as file:
        assert file.read() == b"content"


@pytest.mark.timeout(30)
def test_nothing_waits_for_a_writer_of_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SandboxError, match="not a file that can be read twice") as caught, _opened(tmp_path / "pipe"):
        pass
    assert caught.value.code is ErrorCode.unsafe_archive


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, code in ((".", ErrorCode.unsafe_archive), ("none", ErrorCode.path_not_found), ("socket", ErrorCode.io_error)):
            with pytest.raises(SandboxError) as caught, _opened(tmp_path / name):
                pass
            assert caught.value.code is code
