"""Tars of attackers: what tarfile would read for hours or hold in memory is refused before it does."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, OperationError
from sandbox.state.checkpoint_file import load
from sandbox.state.initial_workspace import InitialWorkspace
from sandbox.state.store import Store
from sandbox.transfers import tars
from sandbox.transfers.archives import unpack
from sandbox.transfers.tars import ForwardFile, GuardedFile, UnsafeTarError, each_member, open_tar


def header(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Return an extended header, with what a member needs to follow it."""
    made = tarfile.TarInfo("h")
    made.type, made.size = kind, len(records)
    return made.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % tarfile.BLOCKSIZE)


def record(value: bytes, name: bytes = b"comment") -> bytes:
    """Return a record of a pax header."""
    rest = b" " + name + b"=" + value + b"\n"
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
    with open_tar(ForwardFile(io.BytesIO(content))) as tar:
        yield from each_member(tar)


def file(name: str, content: bytes = b"", size: int | None = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a member, whose header may say another size."""
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, len(content) if size is None else size
    return made.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def holes(size: int) -> bytes:
    """Return a sparse file that has nothing but holes."""
    sparse = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"%d" % size}
    return header(b"".join(record(value, name) for name, value in sparse.items())) + file("holes", b"0\n".ljust(512, b"\0"))


HOSTILE = {
    "digits in a row": (header(record(b"1" * 60_000)), "too many digits"),
    "global digits": (header(record(b"1" * 60_000), tarfile.XGLTYPE), "too many digits"),
    "digits without an end": (header(b"1" * 60_000), "invalid"),
    "many links to digits": (links(17, "1" * 4095), "too many digits"),
    "a long header": (header(record(b"x" * 100_000)), "too long"),
    "a name without end": (header(b"x" * 100_000, tarfile.GNUTYPE_LONGNAME), "too long"),
    "headers in a row": (header(record(b"x" * 5000), tarfile.XGLTYPE) * 20, "too long"),
    "a record of no bytes": (header(b"0 a=b\n"), "invalid"),
    "a size below zero": (file("a", size=-512), "negative size"),
    "a size below zero of what tarfile does not know": (file("a", size=-512, kind=b"Z"), "negative size"),
    "a size below zero in a pax header": (header(record(b"-512", b"size")) + file("a", kind=b"Z"), "negative size"),
    "a size without end": (header(record(b"9223372036854775807", b"size")) + file("a", kind=b"Z"), "unexpected end"),
    "holes below zero": (holes(-(10**12)), "negative size"),
    "a size that is no number": (header(record(b"x", b"GNU.sparse.realsize")) + file("a"), "damaged"),
    "digits that are searched three times": (
        header(record(b"1" * 5500)+ record(b"1", b"GNU.sparse.size")) * 4 + links(1, "1" * 5700), "too many digits"),
    "records that end nowhere": (header(b"5 aaa" * 10_000 + b"="), "invalid"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_headers_that_take_long_or_much_memory_are_refused(what: str) -> None:
    content, problem = HOSTILE[what]
    with pytest.raises(tarfile.TarError, match=problem):
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


def test_a_long_tar_may_have_many_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As names of numbers of 256 bits have, which have 78."""
    monkeypatch.setattr(tars, "_MOST_STEPS", 1 << 16)
    names = [f"{n:078}/{n:078}" for n in range(100)]
    content = b"".join(header(record(name.encode(), b"path")) + file("short") for name in names)
    assert [member.name for member in members(content)] == names


def test_content_is_read_whole() -> None:
    content = os.urandom(3 << 20)
    with open_tar(GuardedFile(io.BytesIO(file("a", content) + file("b")))) as tar:
        found = [source.read() for member in each_member(tar) if (source := tar.extractfile(member)) is not None]
    assert found == [content, b""]


def test_members_are_forgotten_and_the_file_is_read_once() -> None:
    with open_tar(ForwardFile(io.BytesIO(links(100, "x" * 200)))) as tar:
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
@pytest.mark.parametrize(
    "what", ["digits in a row", "a name without end", "a size below zero", "a size that is no number", "holes below zero"]
)
def test_downloads_and_checkpoints_are_read_so(what: str, read: Callable[[bytes, Path], None], tmp_path: Path) -> None:
    content, problem = HOSTILE[what]
    with pytest.raises(OperationError, match=problem) as caught:
        read(content + links(1, "end"), tmp_path)
    assert caught.value.code is ErrorCode.unsafe_archive
    assert not list(tmp_path.iterdir())


def test_holes_of_a_download_count_as_bytes(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="more than 1048576 bytes"):
        _unpack(holes(2 << 20), tmp_path)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_workspace_that_was_uploaded_is_read_so(what: str) -> None:
    with contextlib.closing(InitialWorkspace(1 << 20)) as base:
        base.keep(HOSTILE[what][0] + links(1, "end"))
        assert base.content(b"link-0", 10) is None
        assert "no archive" in base.lost


def test_a_guarded_file_goes_back_as_well() -> None:
    content = links(3, "a")
    with open_tar(GuardedFile(io.BytesIO(content))) as tar:
        assert [member.name for member in each_member(tar)] == ["link-0", "link-1", "link-2"]
        assert tar.fileobj is not None
        tar.fileobj.seek(0)
        assert tar.fileobj.read(6) == b"link-0"
    with open_tar(ForwardFile(io.BytesIO(content))) as tar:
        assert len(list(each_member(tar))) == 3
        assert tar.fileobj is not None
        with pytest.raises(UnsafeTarError, match="damaged"):
            tar.fileobj.seek(0)
