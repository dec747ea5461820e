"""The host's store of contents, and what it makes of streams and tables that are hostile."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.guest.protocol.records import CHANGED, ENTRY, FETCHED, FILE, FOLDER, GONE, GOT, LINK, PART, UNREAD
from sandbox.state.contents import Contents
from sandbox.state.store import Store, read_content
from sandbox.state.table import Entry, Key, differences, is_below, pack, table_of

MIB = 1 << 20


def content(data: bytes, at: int = 0) -> bytes:
    """A content of ``at`` bytes of hole, then ``data``."""
    end = PART.pack(at + len(data), 0)
    return PART.pack(at, len(data)) + data + end if data else end


def entry(path: str, kind: bytes = FILE, root: int = 0, size: int = 1, stamp: int = 5, target: bytes = b"") -> Entry:
    return Entry(root, kind, 0o644, 1000, 1000, size, stamp, stamp, 1, stamp, 1, path.encode(), target)


def streamed(*entries: Entry) -> bytes:
    return b"".join(ENTRY.pack(*e[:11], len(e.path), len(e.target)) + e.path + e.target for e in entries)


# --- store ------------------------------------------------------------------
def test_the_same_content_is_kept_once() -> None:
    store = Store(MIB)
    first, added = store.add([content(b"x" * 1000)])
    assert (added > 1000, store.used_bytes) == (True, added)
    again, nothing = store.add([content(b"x" * 1000)[:7], content(b"x" * 1000)[7:]])
    assert (again, nothing, store.used_bytes) == (first, 0, added)
    store.drop([first])
    assert store.read(first, 5000) == b"x" * 1000
    store.drop([first])
    assert store.used_bytes == 0
    with pytest.raises(KeyError):
        store.read(first, 10)
    store.release()


def test_holes_are_zeros_and_large_files_only_a_size() -> None:
    store = Store(MIB)
    digest, added = store.add([content(b"end", at=100_000)])
    assert added < 100
    assert store.read(digest, 200_000) == bytes(100_000) + b"end"
    assert store.read(digest, 1000) == 100_003
    assert read_content([content(b"")], 10) == b""
    store.release()


def test_a_content_that_does_not_fit_leaves_what_was_there() -> None:
    store = Store(10_000)
    kept, _ = store.add([content(b"k" * 6000)])
    with pytest.raises(SandboxError) as failure:
        store.add([content(b"n" * 6000)])
    assert failure.value.code == "store_full"
    assert (store.read(kept, 9000), store.used_bytes < 7000) == (b"k" * 6000, True)
    store.release()


def test_a_fork_goes_on_when_the_first_lets_go() -> None:
    store = Store(MIB)
    digest, _ = store.add([content(b"shared")])
    other = store.share()
    other.keep([digest])
    store.drop([digest])
    store.release()
    assert other.read(digest, 100) == b"shared"
    other.release()
    with pytest.raises(KeyError):
        other.read(digest, 100)


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_room_is_given_back_and_nothing_is_lost(sizes: list[tuple[int, bool]], chance: random.Random) -> None:
    store = Store(4000)  # small, so that it is compacted often
    kept: dict[bytes, bytes] = {}
    try:
        for size, drop in sizes:
            data = chance.randbytes(size)
            try:
                kept[store.add([content(data)])[0]] = data
            except SandboxError:
                assert store.used_bytes + size + 50 > 4000
            if drop and kept:
                gone = chance.choice(list(kept))
                del kept[gone]
                store.drop([gone])
            for digest, held in kept.items():
                assert store.read(digest, 5000) == held
    finally:
        store.release()


def test_whoever_sends_slowly_holds_up_nobody() -> None:
    store = Store(10_000)
    with store.writing() as stalled:
        stalled.write(content(b"s" * 5000))
        other = store.share()
        with ThreadPoolExecutor(1) as thread:  # another environment's
            digest, _ = thread.submit(other.add, [content(b"quick")]).result(timeout=10)
            assert thread.submit(other.read, digest, 10).result(timeout=10) == b"quick"
            with pytest.raises(SandboxError) as failure:  # what is on its way counts
                thread.submit(other.add, [content(b"x" * 5000)]).result(timeout=10)
        assert failure.value.code == "store_full"
        assert read_content([b"".join(store.pieces(stalled.finish()[0]))], 9000) == b"s" * 5000
    used = store.used_bytes
    with store.writing() as given_up:
        given_up.write(b"g" * (10_000 - used))
    assert (store.used_bytes, store.add([content(b"x" * 4000)])[1] > 4000) == (used, True)
    store.release()
    other.release()


def test_two_that_send_the_same_keep_it_once() -> None:
    store = Store(8 * MIB)
    data = content(os.urandom(3 * MIB))  # more than is held in memory
    with store.writing() as one, store.writing() as two:
        for at in range(0, len(data), 100_000):
            one.write(data[at : at + 100_000])
            two.write(data[at : at + 100_000])
        assert (one.finish()[1], two.finish()[1]) == (len(data), 0)
    (digest,) = store.claim({(0, b"f"): hashlib.sha256(data).digest()}).values()
    assert b"".join(store.pieces(digest)) == data
    store.release()


# --- the stream of fetch ------------------------------------------------------------------
def fetched(number: int, data: bytes, how: int = GOT) -> bytes:
    head = FETCHED.pack(number, how, len(data), 7, 7, 1, 7)
    return head if how == GONE else head + content(data) + CHANGED.pack(False)


@given(st.integers(1, 60), st.lists(st.binary(max_size=50), max_size=8))
def test_contents_come_in_pieces_of_any_size(step: int, files: list[bytes]) -> None:
    store = Store(MIB)
    contents = Contents(store, [entry(f"f{n}") for n in range(len(files))])
    data = b"".join(fetched(n, each) for n, each in enumerate(files))
    for at in range(0, len(data), step):
        contents.take(data[at : at + step])
    contents.finish()
    assert [store.read(contents.digests[0, f"f{n}".encode()], 100) for n in range(len(files))] == files
    assert all(e.mtime == 7 for e in contents.entries.values())
    store.release()


BAD: dict[str, bytes] = {
    "another number": fetched(1, b"a"),
    "no such state": FETCHED.pack(0, 9, 1, 7, 7, 1, 7),
    "a part past the end": FETCHED.pack(0, GOT, 1, 7, 7, 1, 7) + PART.pack(5, 10),
    "parts that overlap": FETCHED.pack(0, GOT, 9, 7, 7, 1, 7) + PART.pack(4, 2) + b"ab" + PART.pack(5, 2),
    "an end that is none": FETCHED.pack(0, GOT, 9, 7, 7, 1, 7) + PART.pack(4, 0),
    "cut": fetched(0, b"abc")[:-3],
    "more than was asked": fetched(0, b"abc") + b"x",
    "an absurd length": FETCHED.pack(0, GOT, 1, 7, 7, 1, 7) + PART.pack(0, (1 << 64) - 1),
    "nothing": b"",
}


def take_all(contents: Contents, data: bytes) -> None:
    for at in range(0, len(data), 5):
        contents.take(data[at : at + 5])
    contents.finish()


@pytest.mark.parametrize("data", BAD.values(), ids=list(BAD))
def test_a_stream_that_makes_no_sense_is_refused_and_leaves_nothing(data: bytes) -> None:
    store = Store(MIB)
    contents = Contents(store, [entry("f0")])
    try:
        with pytest.raises(SandboxUnavailableError):
            take_all(contents, data)
    finally:
        contents.close()
    store.drop(contents.digests.values())
    assert store.used_bytes == 0
    store.release()


# --- tables ------------------------------------------------------------------
WRONG: dict[str, bytes] = {
    "a name that leads out": streamed(entry("..")),
    "a path that leads out": streamed(entry("a", FOLDER), entry("a/../b")),
    "an absolute path": streamed(entry("/etc/passwd")),
    "a folder that is not there": streamed(entry("a/b")),
    "a file as a folder": streamed(entry("a"), entry("a/b")),
    "a path twice": streamed(entry("a"), entry("a")),
    "an empty name": streamed(entry("a", FOLDER), entry("a//b")),
    "a NUL": streamed(entry("a\0b")),
    "a link without a target": streamed(entry("l", LINK)),
    "a file with a target": streamed(entry("f", target=b"t")),
    "no such kind": streamed(entry("f", b"?")),
    "no such root": streamed(entry("f", root=7)),
    "cut": streamed(entry("abc"))[:-1],
    "cut in the head": struct.pack("!B", 0),
    "an empty file": streamed(entry("")),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=list(WRONG))
def test_a_table_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(SandboxUnavailableError):
        table_of(data, 0, True)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_table_or_refused(data: bytes) -> None:
    try:
        table_of(data, 0, True)
    except SandboxUnavailableError:
        return


def test_a_table_is_what_was_streamed() -> None:
    entries = [
        entry("d", FOLDER),
        entry("d/f", size=1 << 40),
        entry("l", LINK, target=b"\xff/.."),
        entry("d", FOLDER, root=1),
    ]
    table, told = table_of(streamed(*entries), 9, False)
    assert list(told.values()) == entries
    assert list(table.entries().values()) == entries
    assert pack(entries) == table.packed


def known(*entries: Entry) -> dict[Key, Entry]:
    return {e.key: e for e in entries}


def test_what_counts_as_a_change() -> None:
    folder, file = entry("d", FOLDER), entry("d/f")
    assert differences(known(folder, file), known(folder._replace(mtime=99, size=4096), file)) == []
    for changed in (file._replace(size=2), file._replace(ctime=6), file._replace(mode=0o600), file._replace(inode=9)):
        assert [d.kind for d in differences(known(folder, file), known(folder, changed))] == ["modified"]
    assert [d.kind for d in differences(known(folder, file), known(folder._replace(mode=0o700), file))] == ["modified"]
    assert [(d.kind, d.entry.path) for d in differences(known(folder), known(file))] == [
        ("deleted", b"d"),
        ("created", b"d/f"),
    ]


def test_what_could_not_be_looked_into_is_no_change() -> None:
    folder, file = entry("d", FOLDER), entry("d/f")
    blind = known(folder, entry("d", UNREAD))
    assert differences(known(folder, file), blind) == []
    assert is_below((0, b"d/f/g"), {(0, b"d")})
    assert not is_below((1, b"d/f"), {(0, b"d")})
    assert not is_below((0, b"dd"), {(0, b"d")})


def test_digests_are_those_of_the_content() -> None:
    store = Store(MIB)
    made: Callable[[bytes], bytes] = lambda data: store.add([data])[0]  # noqa: E731
    assert made(content(b"a")) == hashlib.sha256(content(b"a")).digest()
    store.release()


def test_room_of_the_last_content_is_given_back() -> None:
    store = Store(MIB)
    kept, _ = store.add([content(b"x" * 1000)])
    other, _ = store.add([content(b"y" * 100)])
    store.drop([kept])
    assert store.read(other, 5000) == b"y" * 100
    store.drop([other])
    assert os.fstat(store._file.fileno()).st_size == 0
    again, _ = store.add([content(b"z")])
    assert store.read(again, 10) == b"z"
    store.release()
    store.drop([again])


def test_a_guest_that_sends_in_drops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("sandbox.state.contents.time", SimpleNamespace(monotonic=lambda: clock[0]))
    store = Store(MIB)
    contents = Contents(store, [entry("f", size=1000)])
    drops = [bytes([byte]) for byte in fetched(0, b"x" * 1000)]
    for drop in drops[:10]:
        clock[0] += 1000.0  # a gap, of which 30 s count
        contents.take(drop)
    clock[0] += 1000.0
    with pytest.raises(SandboxError) as failure:
        contents.take(drops[10])
    contents.close()
    assert (failure.value.code, failure.value.retryable) == ("transfer_incomplete", True)
    assert store.used_bytes == 0
    store.release()
