"""Files as bytes and folders as tars over HTTP, streamed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import tarfile
from pathlib import Path

import httpx
import pytest

from tests.integration.observing import eventually
from tests.servers.gamebox_service import ServiceProcess

from .api import Api

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def test_a_file_goes_in_and_comes_out(api: Api, sandbox: str) -> None:
    data, path = os.urandom(3_000_001), f"/v1/sandboxes/{sandbox}/files"
    sent = api.http.put(path, params={"path": "folder/raw", "mode": "640"}, content=data).json()
    assert (sent["tool_executed"], sent["result"]["size_bytes"]) == (True, len(data))
    answer = api.http.get(path, params={"path": "folder/raw"})
    assert (answer.status_code, answer.content == data) == (200, True)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert api.run(sandbox, "ls -l folder/raw")["result"]["output"].startswith("-rw-r-----")


@pytest.mark.parametrize(
    ("asked", "start", "end"), [("bytes=0-9", 0, 10), ("bytes=90-", 90, 100), ("bytes=-5", 95, 100), ("bytes=7-500", 7, 100)]
)
def test_a_range_of_a_file(api: Api, sandbox: str, asked: str, start: int, end: int) -> None:
    path, data = f"/v1/sandboxes/{sandbox}/files", bytes(range(100))
    api.http.put(path, params={"path": "hundred"}, content=data)
    answer = api.http.get(path, params={"path": "hundred"}, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, data[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/100"


def test_what_cannot_be_read_is_a_problem(api: Api, sandbox: str) -> None:
    path = f"/sandboxes/{sandbox}/files"
    api.http.put(f"/v1{path}", params={"path": "ten"}, content=b"0123456789")
    for asked in ("bytes=10-", "bytes=5-4", "bytes=-", "lines=1-2", "bytes=0-1,3-4"):
        found = api.call("GET", path, params={"path": "ten"}, headers={"Range": asked}, status=416)
        assert found["code"] == "range_not_satisfiable"
    assert api.call("GET", path, params={"path": "none"}, status=404)["code"] == "path_not_found"
    assert api.call("GET", path, params={"path": "."}, status=422)["code"] == "not_a_regular_file"
    assert api.call("GET", path, params={"path": "/etc/passwd"}, status=403)["code"] == "path_outside_roots"
    assert api.call("GET", path, status=422)["code"] == "invalid_query"
    refused = api.call("PUT", path, params={"path": "/etc/x"})
    assert (refused["tool_executed"], refused["code"]) == (False, "path_outside_roots")


def test_an_empty_file(api: Api, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/files"
    assert api.http.put(path, params={"path": "empty"}, content=b"").json()["tool_executed"] is True
    answer = api.http.get(path, params={"path": "empty"})
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_folder_goes_in_as_a_tar_and_comes_out(api: Api, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    (tmp_path / "in" / "below" / "text").write_text("hello")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(tmp_path / "in", arcname=".")
    path = f"/v1/sandboxes/{sandbox}/trees"
    sent = api.http.put(path, params={"path": "tree"}, content=packed.getvalue()).json()
    assert (sent["tool_executed"], sent["result"]["files"]) == (True, 1)
    answer = api.http.get(path, params={"path": "tree"})
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        found = archive.extractfile("below/text")
        assert found is not None
        assert found.read() == b"hello"
    found = api.call("GET", f"/sandboxes/{sandbox}/trees", params={"path": "tree/below/text"}, status=422)
    assert found["code"] == "not_a_directory"


def test_a_download_in_chunks_ends_with_the_envelope(api: Api, sandbox: str) -> None:
    api.run(sandbox, "head -c 200000 /dev/zero > zeros")
    answer = api.http.post(f"/v1/sandboxes/{sandbox}/download", json={"path": "zeros"})
    assert answer.headers["content-type"] == "application/vnd.gamebox.chunks"
    data, at = b"", 0
    while length := int.from_bytes(answer.content[at : at + 4], "big"):
        data += answer.content[at + 4 : at + 4 + length]
        at += 4 + length
    assert data == bytes(200_000)
    assert json.loads(answer.content[at + 4 :])["result"]["kind"] == "file"
    failed = api.http.post(f"/v1/sandboxes/{sandbox}/download", json={"path": "none"}).content
    assert json.loads(failed[4:])["code"] == "path_not_found"


def test_an_upload_that_breaks_off_leaves_no_file(api: Api, sandbox: str) -> None:
    def broken() -> object:
        yield b"x" * 100_000
        raise ValueError("gone")

    other = httpx.Client(base_url=api.http.base_url, headers=api.http.headers, trust_env=False)
    with other, pytest.raises(ValueError, match="gone"):
        other.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "half"}, content=broken())  # type: ignore[arg-type]
    assert eventually(lambda: not api.under_way(sandbox))
    assert api.call("POST", f"/sandboxes/{sandbox}/stat", {"path": "half"})["code"] == "path_not_found"
    assert "half" not in api.run(sandbox, "ls -a")["result"]["output"]


def test_a_download_that_nobody_reads_to_its_end_holds_nothing_up(api: Api, sandbox: str) -> None:
    api.run(sandbox, "truncate -s 100000000 long")
    for _ in range(3):
        with api.http.stream("GET", f"/v1/sandboxes/{sandbox}/files", params={"path": "long"}) as answer:
            next(answer.iter_raw(1000))
    assert api.run(sandbox, "echo on; rm long")["result"]["output"] == "on\n"


def test_a_download_that_fails_is_a_problem_or_has_no_end(service: ServiceProcess, api: Api, sandbox: str) -> None:
    api.run(sandbox, "truncate -s 100000000 shrinks; echo text > closed; chmod 0 closed")
    path = f"/v1/sandboxes/{sandbox}/files"
    refused = api.http.get(path, params={"path": "closed"})
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    with api.http.stream("GET", path, params={"path": "shrinks"}) as answer:
        pieces = answer.iter_raw(1000)
        next(pieces)
        api.run(sandbox, "truncate -s 1000 shrinks")
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    log = service.folder.parent / "service.log"
    assert eventually(lambda: "a download was cut off" in log.read_text())
    assert " ERROR " not in log.read_text()
    assert api.run(sandbox, "rm -f closed shrinks; echo on")["result"]["output"] == "on\n"


def test_slow_clients_hold_no_threads(service: ServiceProcess, api: Api, sandbox: str) -> None:
    assert service.process is not None
    tasks = Path(f"/proc/{service.process.pid}/task")
    api.http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "before"}, content=b"x" * (4 << 20))
    before = len(list(tasks.iterdir()))
    head = f"PUT /v1/sandboxes/{sandbox}/files?path=slow HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.key}\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            slow.sendall(f"{head}Content-Length: 1000\r\n\r\nbegun".encode())
        answer = api.http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "quick"}, content=b"y" * (4 << 20))
        assert answer.json()["tool_executed"] is True
        got = api.http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "quick"})
        assert got.content == b"y" * (4 << 20)
        assert len(list(tasks.iterdir())) < before + 20
