"""What a command printed: kept in the guest, shown on the host; every byte accounted for."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.commands.output import MOST_CHANGES, MOST_TOLD_CHANGES, SETTLED_BYTES, STDERR, STDOUT, Output
from sandbox.text.command_output import CommandOutput, decode_part, join_segments

_writes = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=40)), max_size=12)
_limits = st.integers(0, 200)


def collected(folder: Path, writes: list[tuple[int, bytes]], keep: int, limit: int) -> Output:
    output = Output(os.fsencode(folder / "spill"), keep, limit, lambda: False)
    for stream, data in writes:
        output.append(stream, data)
    return output


@given(writes=_writes, keep=_limits, limit=_limits)
def test_head_and_tail_and_spill(writes: list[tuple[int, bytes]], keep: int, limit: int) -> None:
    whole = b"".join(data for _, data in writes)
    with tempfile.TemporaryDirectory() as folder:
        output = collected(Path(folder), writes, keep, limit)
        segments, blob = output.segments()
        assert output.total == len(whole)
        assert output.truncated == (len(whole) > keep)
        assert len(blob) == min(len(whole), keep)
        head = b"".join(_part(segments, blob, 0))
        tail = b"".join(_part(segments, blob, 1))
        assert head + tail == blob
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert output.has_spill == output.truncated
        if output.truncated:
            assert (len(head), len(tail)) == (keep - keep // 2, keep // 2)
            assert (Path(folder) / "spill").read_bytes() == whole[:limit]
            assert output.spill_truncated == (len(whole) > limit)
        for stream in (STDOUT, STDERR):
            own = b"".join(data for s, data in writes if s == stream)
            shown = [piece for s, piece in _with_streams(segments, blob) if s == stream]
            assert sum(map(len, shown)) <= len(own)
            if not output.truncated:
                assert b"".join(shown) == own
        output.discard()
        assert not os.listdir(folder)


@given(writes=_writes, keep=_limits, limit=_limits, start=st.integers(0, 400), size=st.integers(1, 400))
def test_the_streams_of_any_part(writes: list[tuple[int, bytes]], keep: int, limit: int, start: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = collected(Path(folder), writes, keep, limit)
        output.settle()
        expected = [stream for stream, data in writes for _ in data][start : start + size]
        told = output.streams(start, len(expected))
        assert [stream for stream, length in told for _ in range(length)] == expected
        assert all(length > 0 for _, length in told)
        output.discard()


def test_streams_that_change_too_often_are_not_known_after_that(tmp_path: Path) -> None:
    output = collected(tmp_path, [(STDOUT + n % 2, b"x") for n in range(3 * MOST_CHANGES)], 10, 1 << 20)
    first = output.streams(0, 3 * MOST_CHANGES)
    assert first == [[STDOUT + n % 2, 1] for n in range(MOST_TOLD_CHANGES)]
    assert output.streams(MOST_CHANGES - 3, 10) == [[STDERR, 1], [STDOUT, 1], [STDERR, 1]]
    assert output.streams(MOST_CHANGES + 1, 10) == []
    output.discard()


def test_an_ended_command_gives_its_memory_up_and_its_logs_stay(tmp_path: Path) -> None:
    whole = os.urandom(3 * SETTLED_BYTES)
    output = collected(tmp_path, [(STDOUT, whole)], 1 << 20, 1 << 20)
    assert output.segments()[1] == whole
    output.settle()
    assert output.segments() == ([], b"")
    assert output.read(100, 50) == (100, whole[100:150])
    output.append(STDERR, b"left running")
    assert output.read(len(whole), 50) == (len(whole), b"left running")
    output.discard()
    assert output.read(0, 50) == (len(whole), b"left running")


def _with_streams(segments: list[list[int]], blob: bytes) -> list[tuple[int, bytes]]:
    at, found = 0, []
    for stream, length, _ in segments:
        found.append((stream, blob[at : at + length]))
        at += length
    return found


def _part(segments: list[list[int]], blob: bytes, part: int) -> list[bytes]:
    pieces = _with_streams(segments, blob)
    return [data for (_, data), segment in zip(pieces, segments, strict=True) if segment[2] == part]


@given(writes=_writes, keep=_limits, limit=_limits, offset=st.integers(0, 600), size=st.integers(1, 100))
def test_reading_on(writes: list[tuple[int, bytes]], keep: int, limit: int, offset: int, size: int) -> None:
    whole = b"".join(data for _, data in writes)
    with tempfile.TemporaryDirectory() as folder:
        output = collected(Path(folder), writes, keep, limit)
        start, data = output.read(offset, size)
        assert start >= min(offset, len(whole))
        assert whole[start : start + len(data)] == data
        assert len(data) <= size
        if start > offset:  # what was asked for is lost to both bounds
            assert output.truncated
            assert offset >= limit
        at, read = 0, bytearray()
        while at < output.total:
            start, data = output.read(at, size)
            read += data
            assert data or start == output.total
            at = start + len(data)
        if len(whole) <= max(keep, limit):
            assert bytes(read) == whole
        output.discard()


def test_a_full_place_makes_room_once_and_then_gives_up(tmp_path: Path) -> None:
    asked: list[bool] = []

    def make_room() -> bool:
        asked.append(True)
        return len(asked) < 3

    output = Output(os.fsencode(tmp_path / "spill"), 10, 1000, make_room)
    output.append(STDOUT, b"x" * 20)
    assert output._fd is not None
    os.dup2(os.open("/dev/full", os.O_WRONLY), output._fd)
    output.append(STDOUT, b"y" * 20)
    assert len(asked) == 3
    assert output.spill_truncated
    output.append(STDOUT, b"z" * 20)
    assert (len(asked), output.total, output.spilled) == (3, 60, 20)
    assert output.segments()[1] == b"xxxxxzzzzz"


def test_a_spill_file_is_never_opened_over_another(tmp_path: Path) -> None:
    (tmp_path / "spill").symlink_to(tmp_path / "victim")
    output = collected(tmp_path, [(STDOUT, b"x" * 20)], 10, 100)
    assert (output.has_spill, output.spill_truncated) == (False, True)
    assert not (tmp_path / "victim").exists()


@given(
    texts=st.lists(st.tuples(st.sampled_from([1, 2]), st.text(max_size=12)), max_size=10),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_characters_stay_whole_though_streams_alternate(texts: list[tuple[int, str]], cuts: list[int]) -> None:
    per_stream = {n: "".join(t for s, t in texts if s == n).encode() for n in (1, 2)}
    segments: list[list[int]] = []
    blob, n = b"", 0
    while any(per_stream.values()):
        stream = n % 2 + 1
        piece, per_stream[stream] = per_stream[stream][: cuts[n % len(cuts)]], per_stream[stream][cuts[n % len(cuts)] :]
        if piece:
            segments.append([stream, len(piece), 0])
            blob += piece
        n += 1
    shown = join_segments(segments, blob, len(blob), False, None)
    assert shown.stdout == "".join(t for s, t in texts if s == 1)
    assert shown.stderr == "".join(t for s, t in texts if s == 2)
    assert sorted(shown.output) == sorted(shown.stdout + shown.stderr)


@given(text=st.text(max_size=60), keep=st.integers(0, 80))
def test_a_cut_tears_no_character(text: str, keep: int) -> None:
    data = text.encode()
    output = Output(b"", keep, 0, lambda: False)
    output.spill_truncated = True
    if data:
        output.append(STDOUT, data)
    shown = join_segments(*output.segments(), output.total, output.truncated, None)
    if not output.truncated:
        assert shown == CommandOutput(text, text, "", False, data, b"")
        return
    head, _, tail = shown.output.partition(f"\n[... {len(data) - keep} bytes cut ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(data) - len((head + tail).encode()) - (len(data) - keep) <= 6


@given(data=st.binary(max_size=60), keep=st.integers(0, 60))
def test_any_bytes_can_be_shown(data: bytes, keep: int) -> None:
    output = Output(b"", keep, 0, lambda: False)
    output.spill_truncated = True
    for i in range(0, len(data), 7):
        output.append(1 + i % 2, data[i : i + 7])
    shown = join_segments(*output.segments(), output.total, output.truncated, "/spill")
    if not output.truncated and not any(i % 2 for i in range(0, len(data), 7)):
        assert shown.stdout == data.decode("utf-8", "replace")
        assert shown.encoding_errors == (data.decode("utf-8", "replace").encode() != data)
        assert shown.stdout_bytes == data
    head, tail = data[: keep - keep // 2], data[len(data) - keep // 2 :]
    assert len(shown.stdout_bytes + shown.stderr_bytes) == min(keep, len(data))
    assert output.truncated is False or sorted(shown.stdout_bytes + shown.stderr_bytes) == sorted(head + tail)
    shown.output.encode()


@pytest.mark.parametrize(
    ("part", "starts", "ends", "wrong"),
    [
        (b"\xa4a", False, True, False),
        (b"\xa4a", True, True, True),
        (b"a\xc3", True, False, False),
        (b"a\xc3", True, True, True),
        (b"\xa4\xff\xc3", False, False, True),
        ("ä".encode(), False, False, False),
    ],
)
def test_a_torn_border_is_no_encoding_error(part: bytes, starts: bool, ends: bool, wrong: bool) -> None:
    assert decode_part(part, starts=starts, ends=ends) == (part.decode("utf-8", "replace"), wrong)


def test_the_mark_says_where_the_rest_is() -> None:
    shown = join_segments([[1, 2, 0], [2, 2, 1]], b"abcd", 104, True, "/run/x.log")
    mark = "\n[... 100 bytes cut; all of it in /run/x.log ...]\n"
    assert shown == CommandOutput(f"ab{mark}cd", f"ab{mark}", f"{mark}cd", False, b"ab", b"cd")


@pytest.mark.parametrize(
    "segments",
    [
        None,
        5,
        "ab",
        [1],
        [[1, 4]],
        [[1, 5, 0]],
        [[1, 3, 0]],
        [[3, 4, 0]],
        [[1, 4, 2]],
        [[1, -4, 0]],
        [[1, 0, 0], [1, 4, 0]],
        [["1", 4, 0]],
        [[True, 4, 0]],
        [[1, 4.0, 0]],
        [[1, 4, 0, 0]],
        [[1, 2**70, 0]],
        {"a": 1},
    ],
)
def test_segments_that_do_not_add_up_are_refused(segments: object) -> None:
    with pytest.raises(SandboxUnavailableError, match="does not add up") as caught:
        join_segments(segments, b"abcd", 4, False, None)
    assert caught.value.reason == "protocol_violation"


def test_the_room_that_is_made_may_be_its_own_spill_file(tmp_path: Path) -> None:
    output = Output(os.fsencode(tmp_path / "spill"), 10, 1000, lambda: (output.discard(), True)[-1])  # type: ignore[func-returns-value]
    output.append(STDOUT, b"x" * 20)
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(full, output._fd or -1)
    os.close(full)
    output.append(STDOUT, b"y" * 20)
    assert output.spill_truncated
    assert not output.has_spill
    assert output.total == 40
