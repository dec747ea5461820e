"""The parts of waits: files that grow and are exchanged, lines that are matched in a process, the end of an output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.guest.commands.output import STDOUT, Output
from sandbox.guest.interaction.matcher_program import GROUP_CHARS, LENGTH, first_match
from sandbox.guest.interaction.wait_for import WHOLE_BYTES, FileProbe
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.protocol.output_offsets import find_start_offset
from tests.guest.calls import MODULES, place_at


def test_a_file_of_any_kind(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    workspace = tmp_path / "workspace"
    probe = FileProbe(place, "a/b", None)
    assert probe.look() is None
    (workspace / "a").mkdir()
    assert probe.look() is None
    os.mkfifo(workspace / "a" / "b")
    assert probe.look() == {"path": "a/b"}
    (workspace / "link").symlink_to("/etc/passwd")
    for path in ("/etc/passwd", "link"):
        with pytest.raises(Fault) as caught:
            FileProbe(place, path, None).look()
        assert caught.value.code == "path_outside_roots"
    with pytest.raises(Fault) as caught:
        FileProbe(place, "a/b", "x").look()
    assert caught.value.code == "not_a_regular_file"


def test_a_text_on_any_border(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    file = tmp_path / "workspace" / "f"
    for at in (0, 1, (256 << 10) - 2, 256 << 10, WHOLE_BYTES + 1):
        file.write_bytes(b"x" * at + b"ready" + b"y" * 10)
        assert FileProbe(place, "f", "ready").look() is not None, at
        assert FileProbe(place, "f", "r").look() is not None, at


@pytest.mark.parametrize("size", [0, 100, WHOLE_BYTES - 2, WHOLE_BYTES * 3])
def test_a_text_that_comes_in_pieces(tmp_path: Path, size: int) -> None:
    file = tmp_path / "workspace" / "f"
    probe = FileProbe(place_at(tmp_path), "f", "ready")
    assert probe.look() is None
    file.write_bytes(b"x" * size)
    for piece in (b"r", b"ea", b"d"):
        assert probe.look() is None
        with file.open("ab") as target:
            target.write(piece)
    assert probe.look() is None
    assert probe.look() is None
    with file.open("ab") as target:
        target.write(b"y")
    assert probe.look() is not None


@pytest.mark.parametrize("size", [0, WHOLE_BYTES * 2])
def test_a_file_that_is_exchanged_is_looked_at_anew(tmp_path: Path, size: int) -> None:
    file = tmp_path / "workspace" / "f"
    probe = FileProbe(place_at(tmp_path), "f", "ready")
    file.write_bytes(b"x" * (size + 10))
    assert probe.look() is None
    other = tmp_path / "workspace" / "g"
    other.write_bytes(b"ready" + b"x" * (size + 20))
    other.rename(file)
    assert probe.look() is not None


def test_the_first_line_that_matches() -> None:
    assert first_match(re.compile("b(.)(x)?"), "a\nb1\nb2") == {"index": 1, "groups": ["1", None]}
    assert first_match(re.compile("^$"), "a\n") == {"index": 1, "groups": []}
    assert first_match(re.compile("c"), "a\nb") == {"index": None}
    assert first_match(re.compile("(.*)"), "x" * 999) == {"index": 0, "groups": ["x" * GROUP_CHARS]}


def ask(*questions: tuple[bytes, bytes]) -> list[dict[str, object]]:
    """What the program answers to patterns and lines."""
    asked = b"".join(LENGTH.pack(len(part)) + part for question in questions for part in question)
    argv = [sys.executable, "-m", "sandbox.guest.interaction.matcher_program"]
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=30, check=True, cwd=MODULES)
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_program_answers_question_by_question() -> None:
    said = ask((b"^b+$", b"a\nbb"), (b"^b+$", b""), (b"(", b""), (b"a{99999999999}", b"a"), (b"(b)", b"\xffb\nb"))
    assert said[:3] == [{"ready": True}, {"index": 1, "groups": []}, {"index": None}]
    assert "unterminated" in str(said[3]["error"])
    assert said[4]["error"]
    assert said[5:] == [{"index": 0, "groups": ["b"]}]


def output(tmp_path: Path, data: bytes, keep: int = 1 << 16) -> Output:
    made = Output(os.fsencode(tmp_path / "spill"), keep, 1 << 20, lambda: False)
    for at in range(0, len(data), 1000):
        made.append(STDOUT, data[at : at + 1000])
    return made


@pytest.mark.parametrize(
    ("data", "args", "expected"),
    [
        (b"", {"offset": -5}, 0),
        (b"abc", {"offset": -5}, 0),
        (b"abc", {"offset": -1}, 2),
        (b"abc", {"offset": 9}, 9),
        ("ää".encode(), {"offset": -3}, 2),
        (b"a\nb\nc\n", {"offset": 0, "tail_lines": 2}, 2),
        (b"a\nb\nc", {"offset": 0, "tail_lines": 1}, 4),
        (b"a\n", {"offset": 0, "tail_lines": 5}, 0),
        (b"", {"offset": 0, "tail_lines": 5}, 0),
    ],
)
def test_where_to_begin(tmp_path: Path, data: bytes, args: dict[str, int], expected: int) -> None:
    assert find_start_offset(output(tmp_path, data), {"max_bytes": 100, **args}, 1 << 16) == expected


def test_the_last_lines_of_what_was_spilled(tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % n for n in range(20_000))
    made = output(tmp_path, data, keep=1000)
    args = {"offset": 0, "tail_lines": 3, "max_bytes": 65536}
    assert data[find_start_offset(made, args, 1 << 16) :] == b"19997\n19998\n19999\n"
    assert find_start_offset(made, {**args, "tail_lines": 100_000}, 50) == len(data) - 50
