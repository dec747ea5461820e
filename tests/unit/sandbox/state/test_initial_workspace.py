"""The workspace as it was copied in, from the archive that it came as."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator

import pytest

from sandbox import LocalEnvironment, SandboxError
from sandbox.state.initial_workspace import InitialWorkspace


def archive() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        member = tarfile.TarInfo("notes.txt")
        member.size = 5
        made.addfile(member, io.BytesIO(b"text\n"))
    return stream.getvalue()


def test_the_former_bytes_of_a_file() -> None:
    kept = InitialWorkspace(1 << 20)
    assert b"".join(kept.copy_passing([archive()[:700], archive()[700:]])) == archive()
    assert (kept.content(b"notes.txt", 10), kept.content(b"notes.txt", 4), kept.content(b"none", 10)) == (b"text\n", 5, None)
    kept.close()


@pytest.mark.parametrize("data", [b"no tar", b"x" * 600])
def test_what_is_no_archive_has_no_files(data: bytes) -> None:
    """A service keeps what clients send as the initial workspace, also if the sandbox refuses it then."""
    kept = InitialWorkspace(1 << 20)
    kept.keep(data)
    assert kept.content(b"notes.txt", 10) is None
    assert "no archive" in kept.lost
    assert kept.content(b"notes.txt", 10) is None


def test_an_upload_that_was_cut_off_leaves_no_former_bytes() -> None:
    def cut() -> Iterator[bytes]:
        yield archive()[:700]
        raise RuntimeError("the client is gone")

    with LocalEnvironment() as env:
        env.upload_pieces("tree", iter([archive()]), ".", initial=True).unwrap()
        with pytest.raises(RuntimeError):
            env.upload_pieces("tree", cut(), ".", initial=True)
        env.write("notes.txt", "new\n").unwrap()
        assert env.export_patch().unwrap().left_out == {"notes.txt": "it was not kept"}


def test_a_client_that_goes_away_leaves_no_former_bytes() -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield archive()[:700]
        raise RuntimeError("the client is gone")

    with LocalEnvironment() as env:
        env.upload_pieces("tree", iter([archive()]), ".", initial=True).unwrap()
        with pytest.raises(RuntimeError):
            asyncio.run(env.upload_awaited("tree", cut(), ".", initial=True))
        env.write("notes.txt", "new\n").unwrap()
        assert env.export_patch().unwrap().left_out == {"notes.txt": "it was not kept"}


def test_an_upload_that_failed_leaves_no_former_bytes() -> None:
    """The guest may have taken another part of it than the host would read."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        kept, pipe = tarfile.TarInfo("notes.txt"), tarfile.TarInfo("pipe")
        kept.size, pipe.type = 5, tarfile.FIFOTYPE
        made.addfile(kept, io.BytesIO(b"text\n"))
        made.addfile(pipe)
    with LocalEnvironment() as env:
        with pytest.raises(SandboxError, match="neither a file"):
            env.upload_pieces("tree", iter([stream.getvalue()]), ".", initial=True).unwrap()
        env.write("notes.txt", "new\n").unwrap()
        assert env.export_patch().unwrap().left_out == {"notes.txt": "it was not kept"}
