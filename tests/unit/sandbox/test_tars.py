"""Tars of attackers: what tarfile would read for hours or hold in memory is refused before it does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, OperationError
from sandbox.state.checkpoint_file import load
from sandbox.state.initial_workspace import InitialWorkspace
from sandbox.state.store import Store
from sandbox.tars import ForwardFile, GuardedFile, UnsafeTarError, each_member
from sandbox.transfers.archives import unpack


def header(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Return an extended header, with what a member needs to follow it."""
    made = tarfile.TarInfo("h")
    made.type, made.size = kind, len(records)
    return made.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % tarfile.BLOCKSIZE)


def record(value: bytes) -> bytes:
    """Return a record of a pax header."""
    rest = b" comment=" + value + b"\n"
    length = len(rest) + len(str(len(rest)))
    return b"%d%s" % (length + (len(str(length)) > len(str(len(rest)))), rest)


def links(count: int, target: str, kind: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar of links with that target."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as made:
        for n in range(count):
            member = tarfile.TarInfo(f"link-{n}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            made.addfile(member)
    return file.getvalue()


def members(content: bytes) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=ForwardFile(io.BytesIO(content)), mode="r:") as tar:
        yield from each_member(tar)


HOSTILE = {
    "digits in a row": (header(record(b"1" * 60_000)), "too many digits"),
    "global digits": (header(record(b"1" * 60_000), tarfile.XGLTYPE), "too many digits"),
    "digits without an end": (header(b"1" * 60_000), "invalid"),
    "many links to digits": (links(17, "1" * 4095), "too many digits"),
    "a long header": (header(record(b"x" * 100_000)), "too long"),
    "a name without end": (header(b"x" * 100_000, tarfile.GNUTYPE_LONGNAME), "too long"),
    "headers in a row": (header(record(b"x" * 5000), tarfile.XGLTYPE) * 20, "too long"),
    "a record of no bytes": (header(b"0 a=b\n"), "invalid"),
    "records that end nowhere": (header(b"5 aaa" * 10_000 + b"="), "invalid"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_headers_that_take_long_or_much_memory_are_refused(what: str) -> None:
    content, problem = HOSTILE[what]
    with pytest.raises(UnsafeTarError, match=rf"^it has .*{problem}"):
        list(members(content + links(1, "end")))


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("target", ["1" * 4095, "x" * 300, "11 hdrcharset=x"])
def test_targets_that_a_link_may_have_are_read(target: str, kind: int) -> None:
    assert [member.linkname for member in members(links(10, target, kind))] == [target] * 10


@pytest.mark.parametrize("name", ["n" * 300, "n" * 145 + "x" * 40, f"{'x' * 200}/{'1' * 255}", "f\u00fc" * 150])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_are_read_in_each_format(name: str, kind: int) -> None:
    """Content of headers is not taken for headers: an ``x`` stands where those have their kind."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=kind, pax_headers={"comment": "x" * 200}) as archive:
        for each in (name, name[:-1]):
            made = tarfile.TarInfo(each)
            made.pax_headers = {"SCHILY.xattr.user.a": "1=2\n3 4", "mtime": "1.5"}
            archive.addfile(made)
    assert [member.name for member in members(target.getvalue())] == [name, name[:-1]]


def test_members_are_forgotten_and_the_file_is_read_once() -> None:
    with tarfile.open(fileobj=ForwardFile(io.BytesIO(links(100, "x" * 200))), mode="r:") as tar:
        assert max(len(tar.members) for _ in each_member(tar)) == 0  # type: ignore[attr-defined]


def _unpack(content: bytes, folder: Path) -> None:
    unpack(io.BytesIO(content), folder / "new", 1 << 20)


def _load(content: bytes, folder: Path) -> None:
    store = Store(1 << 20)
    try:
        load(io.BytesIO(content), "a.tar", "a", store)
    finally:
        store.release()


@pytest.mark.parametrize("read", [_unpack, _load])
@pytest.mark.parametrize("what", ["digits in a row", "a name without end"])
def test_downloads_and_checkpoints_are_read_so(what: str, read: Callable[[bytes, Path], None], tmp_path: Path) -> None:
    content, problem = HOSTILE[what]
    with pytest.raises(OperationError, match=problem) as caught:
        read(content + links(1, "end"), tmp_path)
    assert caught.value.code is ErrorCode.unsafe_archive
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["digits in a row", "a name without end"])
def test_a_workspace_that_was_uploaded_is_read_so(what: str) -> None:
    base = InitialWorkspace(1 << 20)
    base.keep(HOSTILE[what][0] + links(1, "end"))
    assert base.content(b"link-0", 10) is None
    assert "no archive" in base.lost


def test_a_guarded_file_goes_back_as_well() -> None:
    content = links(3, "a")
    with tarfile.open(fileobj=GuardedFile(io.BytesIO(content)), mode="r:") as tar:
        assert [member.name for member in each_member(tar)] == ["link-0", "link-1", "link-2"]
        assert tar.fileobj is not None
        tar.fileobj.seek(0)
        assert tar.fileobj.read(6) == b"link-0"
    with tarfile.open(fileobj=ForwardFile(io.BytesIO(content)), mode="r:") as tar:
        assert len(list(each_member(tar))) == 3
        assert tar.fileobj is not None
        with pytest.raises(UnsafeTarError, match="damaged"):
            tar.fileobj.seek(0)
