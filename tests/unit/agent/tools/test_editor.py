"""The editor: lines, window, the comparison of errors, and the kit on real files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import ActionRegistry
from agent.core.loop.calls import carry_out
from agent.hub import Hub, Setting
from agent.tools.editor import EditorKit
from agent.tools.editor.lines import Lines, text_lines
from agent.tools.editor.lint import Change, Check, Finding, new_findings
from agent.tools.editor.window import Window
from sandbox import LocalEnvironment
from sandbox.testing import FakeEnvironment

FILES = st.lists(st.sampled_from(["a", "b", "é", "\u2028", "\x0c", "\r", "\n", "\n", "\r\n", " "]), max_size=30).map(
    "".join
)
TEXTS = st.lists(st.sampled_from(["x", "y", "\n", ""]), max_size=8).map("".join)


@given(FILES)
def test_lines_are_the_text(text: str) -> None:
    lines = Lines.of(text)
    assert lines.text == text
    assert len(lines) == text.count("\n") + (not text.endswith("\n") and bool(text))
    assert all("\n" not in lines.line(n) for n in range(1, len(lines) + 1))


@given(FILES, TEXTS, st.data())
def test_an_edit_changes_its_lines_and_nothing_else(text: str, new: str, data: st.DataObject) -> None:
    lines = Lines.of(text)
    total = len(lines)
    start = data.draw(st.integers(1, total + 1))
    end = data.draw(st.integers(start - 1, total))
    made = lines.replaced(start, end, new)
    wanted = text_lines(new)
    assert len(made) == total - (end - start + 1) + len(wanted)
    assert [made.line(start + n) for n in range(len(wanted))] == wanted
    assert made.lines[: max(start - 2, 0)] == lines.lines[: max(start - 2, 0)]
    if end < total:
        assert made.lines[start - 1 + len(wanted) :] == lines.lines[end:]
    elif wanted and total:
        assert made.ended == lines.ended  # a last line without an ending stays without one
    endings = {"\r\n" if line.endswith("\r\n") else "\n" for line in lines.lines if line.endswith("\n")}
    if len(endings) == 1:
        assert made.ending in endings or not any(line.endswith("\n") for line in made.lines)


@given(st.integers(0, 500), st.integers(-50, 600), st.integers(1, 120), st.integers(0, 20))
def test_the_window_never_leaves_the_file(total: int, at: int, size: int, overlap: int) -> None:
    if overlap >= size:
        with pytest.raises(ValueError, match="cannot overlap"):
            Window(size, overlap)
        return
    window = Window(size, overlap)
    for first in (
        window.clamped(at, total),
        window.moved(window.clamped(at, total), total, 1),
        window.around(at, total),
    ):
        assert 1 <= first <= max(1, total - size + 1)
        assert window.last(first, total) - first + 1 == min(size, total)
    if 1 <= at <= total:
        assert window.shows(at, window.around(at, total), total)


@given(st.integers(1, 400), st.integers(3, 60))
def test_scrolling_shows_every_line_and_comes_back(total: int, size: int) -> None:
    window, seen = Window(size, 2), set[int]()
    first = 1
    for _ in range(total):
        seen |= set(range(first, window.last(first, total) + 1))
        after = window.moved(first, total, 1)
        assert after >= first
        if after == first:
            break
        assert after <= window.last(first, total)  # no line is skipped
        first = after
    assert seen == set(range(1, total + 1))
    for _ in range(total):
        first = window.moved(first, total, -1)
    assert first == 1


@given(st.integers(1, 50), st.integers(0, 10), st.integers(0, 12), st.lists(st.integers(1, 80), max_size=8))
def test_errors_that_an_edit_only_moves_are_not_its_own(start: int, length: int, lines: int, at: list[int]) -> None:
    change = Change(start, start + length - 1, lines)
    before = Check(tuple(Finding(line, f"e on line {line}") for line in at))
    moved = [(m, line) for line in at if (m := change.moved(line)) is not None]
    after = Check(tuple(Finding(m, f"e on line {line + 99}") for m, line in moved))
    assert new_findings(before, after, change) == []
    for extra in (change.start, change.start + lines):
        found = new_findings(before, Check((*after.findings, Finding(extra, "other"))), change)
        assert [f.message for f in found] == ["other"]


def test_an_error_in_the_replaced_lines_is_the_edits_own() -> None:
    change, error = Change(3, 4, 2), "undefined name 'x'"
    for line in (3, 4):
        assert new_findings(Check((Finding(line, error),)), Check((Finding(line, error),)), change)
    for line in (2, 5):
        assert not new_findings(Check((Finding(line, error),)), Check((Finding(line, error),)), change)


def test_what_a_broken_file_hid_is_not_held_against_the_edit_that_mends_it() -> None:
    before, change = Check((Finding(3, "invalid syntax"),), parsed=False), Change(3, 3, 1)
    assert new_findings(before, Check((Finding(9, "invalid syntax"),), parsed=False), change) == []
    assert new_findings(before, Check((Finding(3, "other"),), parsed=False), change)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEnvironment]:
    with LocalEnvironment(tmp_path_factory.mktemp("workspace")) as environment:
        yield environment


class Editor:
    """The kit as an agent has it: actions through the environment, the window from the prompt."""

    def __init__(self, environment: Any, **options: Any) -> None:
        self.kit = EditorKit(Setting(environment=environment, hub=Hub()), **options)
        self.environment, self.registry = environment, ActionRegistry(self.kit.actions())

    def __call__(self, tool: str, **args: Any) -> dict[str, Any]:
        action = self.registry.get_action(tool)
        assert action is not None
        ok, why = self.registry.validate_args(action, args)
        assert ok, why
        return carry_out(self.environment, action, args)

    @property
    def seen(self) -> str:
        return self.kit.describe()["open file"]


@pytest.fixture
def folder(local: LocalEnvironment) -> Path:
    for entry in Path(local.workspace).iterdir():
        local.delete(entry.name, recursive=True).unwrap()
    return Path(local.workspace)


@pytest.fixture
def editor(local: LocalEnvironment, folder: Path) -> Editor:
    return Editor(local)


def numbered(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(1, count + 1))


def test_open_goto_and_scroll(editor: Editor, folder: Path) -> None:
    (folder / "a.txt").write_text(numbered(250))
    assert editor.seen == "No file is open."
    assert editor("open", path="a.txt")["result"] == "Opened a.txt. The window shows lines 1-100 of 250."
    assert editor.seen.startswith("[a.txt: 250 lines]\n1:line 1\n")
    assert editor.seen.endswith("\n100:line 100\n(150 more below)")
    assert "99-198" in editor("scroll_down")["result"]
    assert "151-250" in editor("scroll_down")["result"]
    assert "end of a.txt already" in editor("scroll_down")["result"]
    assert "53-152" in editor("scroll_up")["result"]
    assert editor.seen.split("\n")[1] == "(52 more above)"
    editor("scroll_up")
    assert "beginning of a.txt already" in editor("scroll_up")["result"]
    assert "144-243" in editor("goto", line=160)["result"]
    assert "151-250" in editor("goto", line=250)["result"]
    before = editor.kit.snapshot()
    for refused in (editor("goto", line=251), editor("open", path="a.txt", line=900), editor("open", path="none.txt")):
        assert refused["tool_executed"] is False
    assert editor.kit.snapshot() == before  # the position changes only when all went well


def test_without_an_open_file(editor: Editor) -> None:
    calls: dict[str, dict[str, Any]] = {
        "goto": {"line": 1},
        "scroll_up": {},
        "search_file": {"pattern": "x"},
        "edit": {"start": 1, "end": 1, "text": ""},
    }
    for tool, args in calls.items():
        assert editor(tool, **args)["code"] == "no_open_file"


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        (b"a\r\nb\r\nc\r\n", (2, 2, "x\ny\n"), b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\nb\r\nc\n", (2, 2, "x"), b"a\nx\r\nc\n"),
        (b"a\nb", (2, 2, "x"), b"a\nx"),
        (b"a\nb", (1, 1, "x"), b"x\nb"),
        (b"a\nb", (3, 2, "c"), b"a\nb\nc"),
        (b"a\nb\n", (3, 2, "c"), b"a\nb\nc\n"),
        (b"", (1, 1, "x\ny"), b"x\ny\n"),
        (b"a\nb\nc\n", (2, 2, ""), b"a\nc\n"),
        (b"a\nb\nc\n", (2, 2, "\n"), b"a\n\nc\n"),
        (b"a\nb\nc\n", (1, 3, "z"), b"z\n"),
        (b"a\nb\n", (1, 0, "x"), b"x\na\nb\n"),
        ("ä\x0c\u2028b\nç\n".encode(), (2, 2, "日本"), "ä\x0c\u2028b\n日本\n".encode()),
        (b"a\x85b\nc\n".replace(b"\x85", b"\xc2\x85"), (2, 2, "d"), b"a\xc2\x85b\nd\n"),
    ],
)
def test_edits_keep_everything_else_to_the_byte(
    editor: Editor, folder: Path, before: bytes, edit: tuple[int, int, str], after: bytes
) -> None:
    (folder / "f.txt").write_bytes(before)
    editor("open", path="f.txt")
    start, end, text = edit
    answer = editor("edit", start=start, end=end, text=text)
    assert answer["tool_executed"], answer
    assert (folder / "f.txt").read_bytes() == after


@pytest.mark.parametrize(("start", "end"), [(4, 4), (3, 1), (1, 4), (5, 4), (2, 0)])
def test_lines_that_are_not_there(editor: Editor, folder: Path, start: int, end: int) -> None:
    (folder / "f.txt").write_text("a\nb\nc\n")
    editor("open", path="f.txt")
    answer = editor("edit", start=start, end=end, text="x")
    assert answer["code"] == "range_outside_file", answer
    assert (folder / "f.txt").read_text() == "a\nb\nc\n"


def test_an_edit_is_made_on_what_was_seen(editor: Editor, folder: Path) -> None:
    (folder / "f.txt").write_text("a\nb\n")
    editor("open", path="f.txt")
    (folder / "f.txt").write_text("new\na\nb\n")
    refused = editor("edit", start=1, end=1, text="x")
    assert (refused["code"], (folder / "f.txt").read_text()) == ("path_changed", "new\na\nb\n")
    assert editor.seen.startswith("[The file has changed since you last saw it.")
    assert not editor.seen.startswith("[The file was changed")
    assert editor("edit", start=1, end=1, text="x")["tool_executed"]
    (folder / "f.txt").unlink()
    assert "cannot be shown" in editor.seen
    assert editor("edit", start=1, end=1, text="x")["code"] == "path_not_found"


def test_only_new_errors_refuse_an_edit_and_nothing_is_changed(editor: Editor, folder: Path) -> None:
    good = "def f(x):\n    return x\n\n\ndef g():\n    return f(1)\n"
    (folder / "m.py").write_text(good)
    editor("open", path="m.py")
    refused = editor("edit", start=2, end=2, text="  return (x\n")
    assert refused["code"] == "lint_errors"
    assert "line 2: '(' was never closed" in refused["result"]
    assert "With the edit:\n" in refused["result"]
    assert (folder / "m.py").read_text() == good
    assert editor("edit", start=2, end=2, text="    return x + 1")["tool_executed"]


def test_a_broken_file_can_be_mended_step_by_step(editor: Editor, folder: Path) -> None:
    (folder / "m.py").write_text("x = (1\n\n\ndef f(:\n    pass\n")
    editor("open", path="m.py")
    assert editor("edit", start=3, end=3, text="y = 2\nz = 3")["tool_executed"]  # neither better nor worse
    assert editor("edit", start=1, end=1, text="x = 1")["tool_executed"]  # shows the error that the first one hid
    assert editor("edit", start=2, end=2, text="q = )")["code"] == "lint_errors"
    assert editor("edit", start=5, end=5, text="def f():")["tool_executed"]
    compile((folder / "m.py").read_text(), "m.py", "exec")


@pytest.mark.parametrize(
    ("name", "good", "bad", "why"),
    [
        ("a.json", '{"a": 1}', '{"a": }', "Expecting value"),
        ("a.toml", "a = 1", "a = ", "Invalid value"),
        ("a.sh", "if true; then ls; fi", "if true; then ls", "syntax error"),
    ],
)
def test_other_files_are_checked_too(editor: Editor, folder: Path, name: str, good: str, bad: str, why: str) -> None:
    (folder / name).write_text(f"{good}\n")
    editor("open", path=name)
    assert editor("edit", start=1, end=1, text=f"{good}\n")["tool_executed"]
    refused = editor("edit", start=1, end=1, text=bad)
    assert refused["code"] == "lint_errors"
    assert why in refused["result"]
    assert (folder / name).read_text() == f"{good}\n"


def test_the_check_runs_nothing_of_the_workspace(editor: Editor, folder: Path) -> None:
    for name in ("json", "re", "warnings", "pyflakes", "ast"):
        (folder / f"{name}.py").write_text("open('ran', 'w')\n")
    (folder / "m.py").write_text("x = 1\n")
    editor("open", path="m.py")
    assert editor("edit", start=1, end=1, text="open('ran', 'w')")["tool_executed"]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("text", ["(" * 50_000, "x = " + "-" * 200_000 + "1", "\0", "x = 1\n" * 50_000])
def test_a_text_that_no_parser_likes_harms_nothing(editor: Editor, folder: Path, text: str) -> None:
    (folder / "m.py").write_text("x = 1\n")
    editor("open", path="m.py")
    answer = editor("edit", start=1, end=1, text=text)
    assert answer["tool_executed"] or answer["code"] == "lint_errors", answer
    assert len(json.dumps(answer)) < 200_000


def test_where_nothing_can_be_checked_the_edit_is_made() -> None:
    editor = Editor(FakeEnvironment({"m.py": "x = 1\n"}))
    editor("open", path="m.py")
    assert editor("edit", start=1, end=1, text="x = (")["tool_executed"]


@pytest.mark.parametrize(
    "answer", ["", "[]", "[1, 2]", '[{"found": [[1]], "parsed": true}, {}]', "[" * 9000, '[{"found": 3, "parsed": 1}]']
)
def test_an_answer_of_something_else_is_no_check(answer: str) -> None:
    editor = Editor(FakeEnvironment({"m.py": "x = 1\n"}, lambda run: answer))
    editor("open", path="m.py")
    assert editor("edit", start=1, end=1, text="x = (")["tool_executed"]


def test_create(editor: Editor, folder: Path) -> None:
    assert editor("create", path="new/a.py")["result"] == "Created new/a.py. It is empty."
    assert editor.seen == "[new/a.py: 0 lines]\n(the file is empty)"
    assert editor("edit", start=1, end=1, text="x = 1")["tool_executed"]
    assert (folder / "new/a.py").read_text() == "x = 1\n"
    assert editor("create", path="new/a.py")["code"] == "path_exists"
    assert editor("create", path="new")["code"] == "is_a_directory"


def test_files_that_cannot_be_written_back(editor: Editor, folder: Path) -> None:
    (folder / "latin.txt").write_bytes(b"caf\xe9\nx\n")
    editor("open", path="latin.txt")
    assert editor("edit", start=2, end=2, text="y")["code"] == "not_text"
    (folder / "bin").write_bytes(b"\0\1\2")
    assert editor("open", path="bin")["code"] == "not_text"
    (folder / "big").write_bytes(b"x\n" * (2 << 20))
    assert editor("open", path="big")["code"] == "file_too_large"
    (folder / "half").write_bytes("é\n".encode() * 600_000)  # read in parts
    assert editor("open", path="half", line=600_000)["tool_executed"]
    assert editor.seen.endswith("\n600000:é")


def test_long_lines_are_cut_where_they_are_shown(editor: Editor, folder: Path) -> None:
    (folder / "min.js").write_text("x" * 100_000 + "\n")
    editor("open", path="min.js")
    assert editor.seen.endswith("x [… 99500 more characters]")
    assert len(editor.seen) < 1000


def test_searches(editor: Editor, folder: Path) -> None:
    (folder / "src").mkdir()
    for number in range(130):
        (folder / f"src/m{number}.py").write_text("import os\nname = 'a(b'\n" if number < 3 else "import os\n")
    found = editor("search_dir", pattern="a(b")["result"]
    assert found == "3 matching lines for 'a(b' in the workspace:\nsrc/m0.py (1)\nsrc/m1.py (1)\nsrc/m2.py (1)"
    assert "130 files" in editor("search_dir", pattern="import", dir="src")["error"]
    assert editor("search_dir", pattern="nowhere")["result"] == "No match for 'nowhere' in the workspace."
    editor("open", path="src/m1.py")
    assert (
        editor("search_file", pattern="name")["result"] == "1 matching lines for 'name' in src/m1.py:\n2:name = 'a(b'"
    )
    (folder / "many.txt").write_text("same\n" * 101)
    assert "more than 100 lines" in editor("search_file", pattern="same", path="many.txt")["error"]
    assert editor("find_file", name="m12?.py", dir="src")["result"].count("\n") == 10
    assert editor("find_file", name="src/m7.py")["result"].endswith("src/m7.py")
    assert "130 files" in editor("find_file", name="*.py")["error"]


def test_the_kit_is_restored_from_its_snapshot(editor: Editor, local: LocalEnvironment, folder: Path) -> None:
    (folder / "a.txt").write_text(numbered(300))
    editor("open", path="a.txt", line=200)
    other = Editor(local)
    other.kit.restore(json.loads(json.dumps(editor.kit.snapshot())))
    assert other.seen == editor.seen
    assert other("edit", start=200, end=200, text="x")["tool_executed"]
    for wrong in (3, {}, {"path": "a", "first": "x", "seen": ""}):
        with pytest.raises(ValueError, match="not an open file"):
            other.kit.restore(wrong)


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"window": 2, "overlap": 2}, {"window": "x"}, {"overlap": -1}, {"size": 3}]
)
def test_options_that_do_not_fit(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Editor(FakeEnvironment(), **options)


def test_a_run_is_submitted(editor: Editor) -> None:
    submit = editor.registry.get_action("submit")
    assert submit is not None
    assert submit.terminal
    assert editor("submit")["result"] == {"summary": ""}
