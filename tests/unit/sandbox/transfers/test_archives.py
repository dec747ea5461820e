"""Unpacking what a hostile sandbox sends: nothing outside the target is touched, whatever the archive says."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import ErrorCode, OperationError
from sandbox.transfers import archives
from sandbox.transfers.archives import file_chunks, tree_chunks, unpack

LIMIT = 1 << 20
Entry = tuple[str, bytes, str, bytes]


class House:
    """A folder with something to lose around the place where an archive is unpacked."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.target = base / "in/target"
        (base / "in").mkdir()
        (base / "secret").write_text("secret")
        (base / "folder").mkdir()
        (base / "folder/kept").write_text("kept")
        self._before = self.outside()

    def outside(self) -> dict[str, object]:
        """All there is but the target."""
        found: dict[str, object] = {}
        for path in self.base.rglob("*"):
            if self.target not in [path, *path.parents]:
                status = path.lstat()
                found[str(path)] = (status.st_mode, status.st_nlink, path.read_bytes() if path.is_file() else b"")
        found.pop(str(self.base / "in"), None)  # its link count follows the target
        return found

    def check(self) -> None:
        assert self.outside() == self._before

    def unpack(self, archive: bytes, limit: int = LIMIT) -> tuple[int, int, list[str]]:
        try:
            return unpack(io.BytesIO(archive), self.target, limit)
        finally:
            self.check()

    def unpacks(self, archive: bytes) -> bool:
        """Whether the archive was taken; one that is refused leaves nothing."""
        outcome: OperationError | None = None
        try:
            self.unpack(archive)
        except OperationError as error:
            outcome = error
        assert outcome is None or (outcome.code is ErrorCode.unsafe_archive and not self.target.exists())
        return outcome is None

    def refuses(self, archive: bytes, *words: str, limit: int = LIMIT) -> None:
        with pytest.raises(OperationError) as caught:
            self.unpack(archive, limit)
        assert caught.value.code is ErrorCode.unsafe_archive
        assert caught.value.hint
        for word in words:
            assert word in caught.value.message
        assert not self.target.exists()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


class Made(tarfile.TarInfo):
    """An entry with its bytes."""

    data = b""


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o644) -> Made:
    info = Made(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(data)
    info.data = data
    return info


def tar(*entries: Made) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info in entries:
            archive.addfile(info, io.BytesIO(info.data))
    return packed.getvalue()


def symlink(name: str, link: str) -> Made:
    return entry(name, tarfile.SYMTYPE, link)


def folder(name: str, mode: int = 0o755) -> Made:
    return entry(name, tarfile.DIRTYPE, mode=mode)


# --- what is fine ----------------------------------------------------------------------------------------------------------


def test_a_plain_archive(house: House) -> None:
    packed = tar(folder("d"), entry("d/a", data=b"abc", mode=0o751), entry("./b", data=b"x" * 5000), symlink("l", "d/a"))
    assert house.unpack(packed) == (2, 5003, [])
    assert (house.target / "l").read_bytes() == b"abc"
    assert (house.target / "d/a").stat().st_mode & 0o7777 == 0o751


def test_links_that_stay_inside_are_made(house: House) -> None:
    packed = tar(
        symlink("first", "second"), symlink("second", "d/deep/../../f"), folder("d/deep"), entry("f", data=b"f"),
        symlink("d/up", "../f"), symlink("dangling", "nowhere"), symlink("self", "."),
    )  # fmt: skip
    assert house.unpack(packed)[2] == []
    assert (house.target / "first").read_bytes() == b"f"
    assert (house.target / "d/up").read_bytes() == b"f"
    assert os.readlink(house.target / "dangling") == "nowhere"


# --- what is not -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "/secret", "a/../../secret", "..", "a/..", "/", "", ".", "//etc/x", "a/./../../b"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_names_that_lead_out(house: House, name: str, kind: bytes) -> None:
    house.refuses(tar(entry("fine", data=b"x"), entry(name, kind, "x")), "leads out")


@pytest.mark.parametrize(
    "link", ["..", "../..", "../../secret", "/", "/etc/passwd", "../target/../../secret", "d/../../secret", "../target2"]
)
def test_links_that_lead_out_are_skipped(house: House, link: str) -> None:
    files, _, skipped = house.unpack(tar(folder("d"), symlink("out", link), entry("f", data=b"x")))
    assert (files, skipped) == (1, ["out"])
    assert not os.path.lexists(house.target / "out")


def test_a_chain_of_links_that_lead_out_together(house: House) -> None:
    packed = tar(
        folder("a/b/c"), symlink("x", "a/b/c"), symlink("y", "x/.."), symlink("z", "y/../.."), symlink("w", "z/../secret"),
        symlink("fine", "a/b"),
    )  # fmt: skip
    _, _, skipped = house.unpack(packed)
    assert "w" in skipped
    assert os.readlink(house.target / "fine") == "a/b"
    for path in house.target.rglob("*"):
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(house.target))


@pytest.mark.parametrize(
    "after",
    [entry("l/kept", data=b"evil"), folder("l/new"), entry("l", data=b"evil"), symlink("l/x", "f"), symlink("l/x/y", "f")],
)
def test_a_write_through_a_link(house: House, after: Made) -> None:
    for link in ("../../folder", str(house.base / "folder"), "../../secret"):
        if house.unpacks(tar(symlink("l", link), after)):
            assert Path(os.path.realpath(house.target / "l")).is_relative_to(house.target)
            house.target.rename(house.base / "in/done")
            for path in sorted((house.base / "in/done").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            (house.base / "in/done").rmdir()
    house.check()


def test_a_link_made_where_a_folder_is_or_below_a_file(house: House) -> None:
    _, _, skipped = house.unpack(tar(folder("d"), entry("f", data=b"x"), symlink("d", "f"), symlink("f/x", "d"), symlink("f", "d")))
    assert sorted(skipped) == ["d", "f", "f/x"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z"])
def test_what_is_no_file_is_skipped(house: House, kind: bytes) -> None:
    info = entry("device", kind)
    info.devmajor, info.devminor = 1, 3
    files, _, skipped = house.unpack(tar(info, entry("f", data=b"x")))
    assert (files, skipped) == (1, ["device"])
    assert [p.name for p in house.target.iterdir()] == ["f"]


@pytest.mark.parametrize("link", ["../../secret", "/etc/passwd", "f", "../f"])
def test_hard_links_are_skipped(house: House, link: str) -> None:
    assert house.unpack(tar(entry("f", data=b"x"), entry("hard", tarfile.LNKTYPE, link)))[2] == ["hard"]
    assert not os.path.lexists(house.target / "hard")


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, 0o7777, 0o100777, 0])
def test_no_set_id_bits(house: House, mode: int) -> None:
    house.unpack(tar(entry("f", data=b"x", mode=mode), folder("d", mode)))
    for path in house.target.iterdir():
        assert path.stat().st_mode & 0o7000 == 0
    assert (house.target / "f").stat().st_uid == os.getuid()


def test_the_same_name_twice(house: House) -> None:
    house.refuses(tar(entry("f", data=b"1"), entry("f", data=b"2")), "contradicts itself")


def test_a_file_where_a_folder_is_needed(house: House) -> None:
    house.refuses(tar(entry("f", data=b"1"), entry("f/g", data=b"2")), "contradicts itself")


@pytest.mark.parametrize("name", ["n" * 256, "n/" * 2048 + "n"])
def test_names_that_no_file_can_have(house: House, name: str) -> None:
    house.refuses(tar(entry(name)), "longer")


@pytest.mark.parametrize("link", ["x" * 5000, "x/" * 300])
def test_a_link_to_more_than_a_path_is_skipped(house: House, link: str) -> None:
    assert house.unpack(tar(symlink("a", link)))[2] == ["a"]


def test_folders_that_names_imply_are_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_ENTRIES", 20)
    house.refuses(tar(entry("a/" * 20 + "f")), "more than 20 folders")
    house.refuses(tar(entry("a/" * 10 + "f"), symlink("b/" * 10 + "f", "x")), "more than 20 folders")
    assert house.unpack(tar(entry("a/" * 19 + "f"), entry("a/g"))) == (2, 0, [])


def test_a_path_that_is_too_long_for_this_host_is_told(tmp_path: Path) -> None:
    target = tmp_path
    while len(os.fsencode(target)) < 3000:
        target /= "t" * 200
    target.mkdir(parents=True)
    with pytest.raises(OperationError, match="on the host goes") as caught:
        unpack(io.BytesIO(tar(entry("d/" * 600 + "f"))), target / "new", LIMIT)
    assert caught.value.code is ErrorCode.path_invalid
    assert not list(target.iterdir())


def test_too_many_bytes(house: House) -> None:
    house.refuses(tar(entry("a", data=bytes(60)), entry("b", data=bytes(60))), "more than 100 bytes", limit=100)
    huge = entry("huge")
    huge.size = 1 << 60
    house.refuses(huge.tobuf(tarfile.GNU_FORMAT) + bytes(1024), f"more than {LIMIT} bytes")


def test_too_many_entries(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archives.MAX_ENTRIES == 200_000
    monkeypatch.setattr(archives, "MAX_ENTRIES", 20)
    house.refuses(tar(*[folder("d")] * 21), "more than 20 entries")
    assert house.unpack(tar(*[folder("d")] * 20)) == (0, 0, [])


def test_only_some_of_the_skipped_names_are_shown(house: House) -> None:
    assert len(house.unpack(tar(*[entry(f"p{n}", tarfile.FIFOTYPE) for n in range(300)]))[2]) == archives.SHOWN_NAMES


def test_truncated(house: House) -> None:
    packed = tar(entry("a", data=bytes(5000)), entry("b", data=bytes(5000)))
    for cut in (1, 100, 511, 513, 3000, 5633, 6000, 6200):
        if house.unpacks(packed[:cut]):  # cut in a header: the caller compares the number of files
            assert cut in (5633, 6000)
            assert [p.name for p in house.target.iterdir()] == ["a"]
            (house.target / "a").unlink()
            house.target.rmdir()


def test_headers_that_ask_for_memory(house: House) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        header = entry("x", kind)
        header.size = 1 << 62
        house.refuses(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))


def test_sparse_headers(house: House) -> None:
    sparse = entry("sparse", tarfile.GNUTYPE_SPARSE, data=b"x" * 512)
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 512)
    header[483:495] = b"%011o\0" % (1 << 32)  # its real size, says the header
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    if house.unpacks(bytes(header) + b"x" * 512 + bytes(1024)):
        assert sum(path.stat().st_blocks * 512 for path in house.target.iterdir()) < LIMIT
        assert sum(path.stat().st_size for path in house.target.iterdir()) <= LIMIT


def test_pax_headers_cannot_change_what_is_checked(house: House) -> None:
    info = entry("fine", data=b"x")
    info.pax_headers = {"path": "../secret"}
    house.refuses(tar(info), "leads out")
    info = entry("fine", data=b"x")
    info.pax_headers = {"size": str(1 << 50)}
    house.refuses(tar(info))


_names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "l", "/"]), min_size=1, max_size=4).map("/".join)
_entries = st.lists(
    st.builds(
        entry, _names, st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
        _names, st.just(b""), st.sampled_from([0o644, 0o4755, 0]),
    ),
    max_size=8,
)  # fmt: skip


@given(entries=_entries, cut=st.none() | st.integers(0, 4000))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_archive(entries: list[Made], cut: int | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    house = House(tmp_path_factory.mktemp("any"))
    if not house.unpacks(tar(*entries)[:cut]):
        return
    root = os.path.realpath(house.target)
    for path in house.target.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        assert mode & 0o7000 == 0
        real = os.path.realpath(path)
        assert real == root or real.startswith(root + "/")


@given(data=st.binary(max_size=1500))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    house = House(tmp_path_factory.mktemp("bytes"))
    house.unpacks(data)


# --- the other way ---------------------------------------------------------------------------------------------------------


def test_a_tree_goes_round(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d/empty").mkdir(parents=True)
    (source / "d/é").write_bytes(b"x" * 1000)
    (source / ("long" * 60)).write_bytes(b"")
    (source / "run").write_bytes(b"y" * 512)
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("d/é")
    os.mkfifo(source / "pipe")
    packed = b"".join(tree_chunks(source, LIMIT))
    assert len(packed) % 512 == 0
    files, size, skipped = unpack(io.BytesIO(packed), tmp_path / "target", LIMIT)
    assert (files, size, skipped) == (3, 1512, [])
    assert sorted(p.name for p in (tmp_path / "target").iterdir()) == sorted(["d", "link", "long" * 60, "run"])
    assert (tmp_path / "target/run").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("chunks", [file_chunks, tree_chunks])
def test_limits_of_what_is_sent(tmp_path: Path, chunks: Callable[[Path, int], object]) -> None:
    (tmp_path / "a").write_bytes(bytes(2000))
    source = tmp_path / "a" if chunks is file_chunks else tmp_path
    with pytest.raises(OperationError) as caught:
        list(chunks(source, 1999))  # type: ignore[call-overload]
    assert caught.value.code is ErrorCode.file_too_large
    assert "1999 bytes" in caught.value.message


def test_a_file_that_shrinks_while_it_is_packed_leaves_a_whole_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2_000_000)
    (tmp_path / "b").write_bytes(b"after")
    packed = bytearray()
    for number, chunk in enumerate(tree_chunks(tmp_path, 1 << 30)):
        packed += chunk
        if number == 1:
            os.truncate(tmp_path / "a", 300_000)
    with tarfile.open(fileobj=io.BytesIO(bytes(packed))) as archive:
        members = {member.name: member.size for member in archive}
        assert members == {"a": 2_000_000, "b": 5}
        after = archive.extractfile("b")
        assert after is not None
        assert after.read() == b"after"
