"""Connections in a file: one line each, whatever happens to the file, and no connection ends by it."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import ConnectionFile, Service
from sandbox.cli.network_options import connection_file, services_of
from sandbox.errors import SandboxError
from sandbox.network.connections import Connection, ConnectionLog

ONE = Connection("a.test", 443, "allowed", "192.0.2.1", "a.test", "", 10, 20, 1700000000.12345, 1.5)


def test_a_line_for_each_connection_is_appended_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "connections.jsonl"
    for _ in range(2):
        with ConnectionFile(path) as file:
            file(ONE)
            file(Connection("evil\u2028.test", 80, "denied", why="no rule opens it"))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 4
    assert lines[0] == {
        "host": "a.test", "port": 443, "outcome": "allowed", "address": "192.0.2.1", "rule": "a.test", "why": "",
        "sent_bytes": 10, "received_bytes": 20, "started": 1700000000.123, "duration_seconds": 1.5,
    }  # fmt: skip
    assert (lines[3]["outcome"], lines[3]["why"]) == ("denied", "no rule opens it")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "no/such", tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(SandboxError, match="cannot be written") as refused:
            ConnectionFile(path)
        assert refused.value.code == "invalid_configuration"
        assert refused.value.hint


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files of this process end in the middle of the third line: the rest of it cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = len(json.dumps(ONE.to_dict())) * 5 // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_written_is_told_once_and_counted_and_later_lines_are_whole(tmp_path: Path, small_files: int) -> None:
    told: list[str] = []
    path = tmp_path / "connections.jsonl"
    log = ConnectionLog(ConnectionFile(path, told.append))
    for _ in range(5):
        log.add(ONE)
    assert log.count == 5
    assert len(told) == 1
    assert "File too large" in told[0]
    assert path.stat().st_size == small_files
    resource.setrlimit(resource.RLIMIT_FSIZE, (small_files * 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    log.add(ONE)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["host"] for line in (*lines[:2], lines[-1])] == ["a.test"] * 3
    assert len(lines) == 4  # the third is what was written of it


def test_who_listens_and_fails_ends_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Connection) -> None:
        raise ValueError("no")

    log = ConnectionLog(fails)
    with caplog.at_level(logging.ERROR):
        log.add(ONE)
    assert log.last() == (ONE,)
    assert "the listener for connections failed" in caplog.text


def test_services_of_the_command_line_have_their_secrets_from_the_environment() -> None:
    environ = {"KEY": "s3cr3t-0123456789", "EMPTY": ""}
    (llm, plain) = services_of(
        ["llm=https://api.example.com/base", "plain=http://127.0.0.1:1"],
        ["llm:X-Api-Key=KEY", "llm:Authorization=Bearer KEY"],
        environ,
    )
    assert llm == Service("llm", "https://api.example.com/base", {
        "X-Api-Key": "s3cr3t-0123456789", "Authorization": "Bearer s3cr3t-0123456789",
    })  # fmt: skip
    assert plain.headers == {}
    for services, headers, said in (
        (["llm"], [], "has no upstream"),
        (["a=http://x", "a=http://y"], [], "is given twice"),
        (["a=http://x"], ["b:H=KEY"], "names 'b', which is not a --service"),
        (["a=http://x"], ["a:H"], "is not of the form NAME:HEADER=VARIABLE"),
        (["a=http://x"], ["a:H=MISSING"], "not set here"),
        (["a=http://x"], ["a:H=EMPTY"], "not set here"),
        (["a=http://x"], ["a:H=sk-the-secret-itself"], "is not of the form NAME:HEADER=VARIABLE"),
        (["a=http://x"], ["a:H=the_secret_itself"], "not set here"),
        (["a=nonsense"], [], "is not an upstream"),
    ):
        with pytest.raises(SandboxError) as refused:
            services_of(services, headers, environ)
        assert said in refused.value.message
        assert "itself" not in str(refused.value)


def test_a_log_of_a_bridge_is_refused(tmp_path: Path) -> None:
    assert connection_file(None, "bridge") is None
    with pytest.raises(SandboxError, match="has no effect with --network bridge"):
        connection_file(tmp_path / "x", "bridge")
