"""Searching with ripgrep, if this machine has it, and with our own program: the results are the same."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sandbox.guest.files.search import search
from sandbox.guest.loop.context import HelperResult, Place
from sandbox.guest.protocol.faults import Fault
from sandbox.operations import SearchResult
from tests.guest.calls import RealCall, place_at

RIPGREP = shutil.which("rg")
needs_ripgrep = pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed on this machine")


@pytest.fixture(params=["builtin", pytest.param("ripgrep", marks=needs_ripgrep)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(tmp_path: Path, engine: str) -> Place:
    place = place_at(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    if engine == "ripgrep":
        (programs / "rg").symlink_to(str(RIPGREP))
    place.environ["PATH"] = str(programs)
    return place


@pytest.fixture
def workspace(place: Place) -> Path:
    workspace = Path(os.fsdecode(place.workspace))
    (workspace / "src").mkdir()
    (workspace / "src/a.py").write_text("import os\n\ndef alpha():\n    return os.sep\n\ndef beta():\n    pass\n")
    (workspace / "src/b.txt").write_text("alpha\r\nALPHA\n")
    (workspace / ".git").mkdir()
    (workspace / ".git/alpha").write_text("alpha\n")
    (workspace / ".config").write_text("alpha here\n")
    (workspace / "bin").write_bytes(b"\0alpha\n")
    (workspace / "link").symlink_to("/etc")
    return workspace


@pytest.fixture
def second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for a second time is found, however busy the machine is."""
    monkeypatch.setattr("sandbox.guest.files.search.AGAIN_SECONDS", 30.0)


class HidingCall(RealCall):
    """Look for programs in the sandbox's own PATH, as the guest does."""

    def run_helper(self, argv: list[str], **options: Any) -> HelperResult:
        if "/" not in argv[0] and shutil.which(argv[0], path=self.place.environ["PATH"]) is None:
            raise Fault("program_not_found", program=argv[0])
        return super().run_helper(
            [shutil.which(argv[0], path=self.place.environ["PATH"]) or argv[0], *argv[1:]], **options
        )


def found(place: Place, pattern: str, **args: Any) -> dict[str, Any]:
    return search(HidingCall(place, {"pattern": pattern, **args}))


def places(result: dict[str, Any]) -> list[tuple[str, int]]:
    return [(m["path"], m["line"]) for m in result["matches"]]


def test_matches(place: Place, workspace: Path, engine: str) -> None:
    result = found(place, "alpha")
    assert places(result) == [(".config", 1), ("src/a.py", 3), ("src/b.txt", 1)]
    assert (result["files_with_matches"], result["truncated"], result["engine"]) == (3, False, engine)
    assert result["matches"][2]["text"] == "alpha"


def test_options(place: Place, workspace: Path) -> None:
    assert places(found(place, "ALPHA", ignore_case=True, glob="*.txt")) == [("src/b.txt", 1), ("src/b.txt", 2)]
    assert places(found(place, "alpha", glob="*.{py,md}")) == [("src/a.py", 3)]
    assert places(found(place, "alpha", glob="!*.py")) == [(".config", 1), ("src/b.txt", 1)]
    assert places(found(place, "a()", literal=True)) == [("src/a.py", 3), ("src/a.py", 6)]
    assert places(found(place, "^def \\w+", path="src")) == [("src/a.py", 3), ("src/a.py", 6)]
    assert found(place, "nowhere")["matches"] == []


def test_context(place: Place, workspace: Path) -> None:
    first, second = found(place, "def", context_lines=3)["matches"]
    assert (first["before"], first["after"]) == (["import os", ""], ["    return os.sep", "", "def beta():"])
    assert (second["before"], second["after"]) == (["def alpha():", "    return os.sep", ""], ["    pass"])


def test_a_single_file_and_another_root(place: Place, workspace: Path) -> None:
    assert places(found(place, "alpha", path="src/a.py")) == [("src/a.py", 3)]
    home = Path(os.fsdecode(place.home))
    (home / "h").write_text("alpha\n")
    assert places(found(place, "alpha", path=str(home))) == [(str(home / "h"), 1)]
    with pytest.raises(Fault) as caught:
        found(place, "root", path="link")
    assert caught.value.code == "path_outside_roots"


def test_bounds(place: Place, workspace: Path) -> None:
    (workspace / "many").write_text("needle\n" * 500)
    result = found(place, "needle", max_matches=10)
    assert (len(result["matches"]), result["truncated"]) == (10, True)
    exact = found(place, "needle", max_matches=500)
    assert (len(exact["matches"]), exact["truncated"]) == (500, False)
    (workspace / "wide").write_text("thread " + "x" * 300_000 + "\n")
    assert found(place, "thread")["matches"][0]["text"] == "thread " + "x" * 993 + "[299007 characters cut]"


@pytest.mark.parametrize("pattern", ["(", "[", "a{2", "*"])
def test_invalid_patterns(place: Place, workspace: Path, pattern: str, engine: str) -> None:
    if engine == "builtin" and pattern == "a{2":
        assert found(place, pattern)["matches"] == []  # plain text to Python's re
        return
    with pytest.raises(Fault) as caught:
        found(place, pattern)
    assert caught.value.code == "invalid_pattern"
    assert caught.value.fields["problem"]


def test_patterns_that_begin_like_options(place: Place, workspace: Path) -> None:
    (workspace / "o").write_text("--files -e\n")
    assert places(found(place, "--files", path="o")) == [("o", 1)]
    assert places(found(place, "-e")) == [("o", 1)]
    for pattern in ("a\0b", "\ud800"):
        with pytest.raises(Fault) as caught:
            found(place, pattern)
        assert caught.value.code == "invalid_pattern"


def test_names_and_lines_that_are_not_utf8(place: Place, workspace: Path) -> None:
    with open(os.fsencode(workspace) + b"/\xff.txt", "wb") as file:
        file.write(b"\xfe needle\n")
    assert [(m["path"], m["text"]) for m in found(place, "needle")["matches"]] == [("\ufffd.txt", "\ufffd needle")]


def test_modules_of_the_workspace_are_not_imported(place: Place, workspace: Path) -> None:
    for name in ("json.py", "re.py", "sandbox.py"):
        (workspace / name).write_text("raise SystemExit('imported from the workspace')  # needle\n")
    assert len(found(place, "needle")["matches"]) == 3


@needs_ripgrep
@pytest.mark.parametrize("engine", ["ripgrep"], indirect=True)
def test_ignore_files_count(place: Place, workspace: Path) -> None:
    (workspace / ".gitignore").write_text("src/\n")
    assert places(found(place, "alpha")) == [(".config", 1)]


@pytest.mark.parametrize("engine", ["builtin"], indirect=True)
def test_a_catastrophic_pattern_ends(place: Place, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.guest.files.search.SECONDS", 2.0)
    (workspace / "bad").write_text("a" * 60 + "b\n")
    with pytest.raises(Fault) as caught:
        found(place, "(a+)+$", path="bad")
    assert caught.value.code == "timeout"
    assert caught.value.result is not None


@pytest.mark.parametrize("engine", ["builtin"], indirect=True)
@pytest.mark.parametrize(
    "output",
    [
        b"\xff\xfe no json\n[1]\n{}\n",
        json.dumps({"type": "match", "data": {"path": 1, "line_number": "x", "lines": []}}).encode(),
        json.dumps(
            {"type": "match", "data": {"path": {"text": "x"}, "line_number": -5, "lines": {"text": "x"}}}
        ).encode(),
        json.dumps(
            {"type": "match", "data": {"path": {"bytes": "%"}, "line_number": 1 << 80, "lines": {"bytes": "%"}}}
        ).encode(),
        b"[" * 100_000,
    ],
)
def test_forged_output_adds_no_match(place: Place, workspace: Path, output: bytes) -> None:
    class Forged(RealCall):
        def run_helper(self, argv: list[str], **options: Any) -> HelperResult:
            return HelperResult(0, output, b"", False, False)

    assert search(Forged(place, {"pattern": "x"}))["matches"] == []


@pytest.mark.usefixtures("second_search")
@pytest.mark.parametrize("length", [50_000, 5_000_000, 9_600_000])
def test_a_match_far_into_a_long_line_is_returned_with_its_surroundings(
    place: Place, workspace: Path, length: int
) -> None:
    """A9: the first 1,000 characters were returned without the match, and a remainder was announced that did not exist."""
    (workspace / "min.js").write_text("é" * (length // 2) + "x" * 400 + "needle" + "y" * (length // 2) + "\n")
    result = found(place, "needle")
    assert result["truncated"] is False
    (match,) = result["matches"]
    assert (match["path"], match["line"]) == ("min.js", 1)
    assert "xxxneedleyyy" in match["text"]
    assert len(match["text"]) < 1100
    literal = found(place, "xneedle", literal=True)["matches"]
    assert "xxneedleyy" in literal[0]["text"]


@pytest.mark.usefixtures("second_search")
@needs_ripgrep
@pytest.mark.parametrize("engine", ["ripgrep"], indirect=True)
def test_a_search_without_matches_names_skipped_files_that_have_one(place: Place, workspace: Path) -> None:
    """A10: an order in a folder that .gitignore names was reported as missing."""
    (workspace / ".gitignore").write_text("data/\n*.log\n")
    (workspace / "data").mkdir()
    (workspace / "data/orders.csv").write_text("4711;open\n")
    (workspace / "shop.log").write_text("4711 came in\n")
    (workspace / "db").write_bytes(b"\x004711\n")
    result = found(place, "4711")
    assert result["matches"] == []
    assert (result["ignored"], result["binary"], result["left_out_files"]) == (
        ["data/orders.csv", "shop.log"],
        ["db"],
        3,
    )
    text = SearchResult.model_validate(result).to_text()
    assert "data/orders.csv, shop.log" in text
    assert "Search one with path='data/orders.csv'" in text
    for path in ("data", "data/orders.csv", "shop.log", "db"):
        assert found(place, "4711", path=path)["matches"], path
    assert SearchResult.model_validate(found(place, "4712")).to_text() == "[no match]"


@pytest.mark.usefixtures("second_search")
@needs_ripgrep
@pytest.mark.parametrize("engine", ["ripgrep"], indirect=True)
def test_truncated_matches_say_how_many_there_are(place: Place, workspace: Path) -> None:
    """s56: 100 hits were returned without their total number."""
    (workspace / "many").write_text("needle\n" * 500)
    for path in (".", "many"):
        result = SearchResult.model_validate(found(place, "needle", max_matches=10, path=path))
        assert "the first 10 of 500 matches" in result.to_text()
