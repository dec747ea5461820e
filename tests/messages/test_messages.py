"""What models are shown: every text is reproduced from a real situation, is short, and advises nothing that its reader lacks."""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode
from sandbox.messages.notices import HOST_NOTICES, NOTICES

from . import never
from .__main__ import draw, main
from .files import TEXTS, page_of, read_page
from .situation import Situation
from .situations import ALL, BY_NAME
from .stage import Shown, Stage

pytestmark = pytest.mark.engine

AGENT_NOTICES = frozenset({"reply_repaired", "too_many_actions", "tag_in_fence", "arguments_edited", "finish_unchecked"})
MEDIAN_CHARS, MOST_CHARS = 300, 1200
# Results whose own text, which is the command's or the file's, is what is long.
LONG_BY_NATURE = frozenset({"long_output", "large_output"})


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


@pytest.fixture(scope="module")
def played(stage: Stage) -> dict[str, Shown]:
    return {}


LINUX = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
HERE = [situation for situation in ALL if situation.linux <= LINUX]


@pytest.mark.xdist_group("messages")
@pytest.mark.parametrize("situation", HERE, ids=lambda situation: situation.name)
def test_the_text_is_the_one_that_was_looked_at(situation: Situation, stage: Stage) -> None:
    """Write it anew with ``python -m tests.messages --only NAME`` and look at the difference."""
    shown = stage.play(situation)
    assert page_of(situation, shown) == (TEXTS / f"{situation.name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("situation", ALL, ids=lambda situation: situation.name)
def test_the_text_has_the_code_that_the_situation_is_about(situation: Situation) -> None:
    text = read_page(situation.name).text
    for code in situation.codes:
        assert re.search(rf"^(ERROR|NOTICE) {code}:", text, re.MULTILINE) or (code == "output_cut" and "left out here" in text)


def test_every_code_that_a_model_can_meet_has_a_situation() -> None:
    met = {code for situation in ALL for code in situation.codes}
    errors, notices = {code.value for code in (*ErrorCode, *AgentErrorCode)}, {*NOTICES, *HOST_NOTICES, *AGENT_NOTICES}
    assert met <= errors | notices
    assert errors - met - set(never.ERRORS) - set(never.RARE) == set()
    assert notices - met - set(never.NOTICES) - set(never.RARE_NOTICES) == set()
    assert (set(never.ERRORS) | set(never.RARE)) <= errors
    assert (set(never.NOTICES) | set(never.RARE_NOTICES)) <= notices
    assert met & (set(never.ERRORS) | set(never.NOTICES)) <= {"file_too_large"}, "what is met is not never met"


def test_a_simple_failure_is_short() -> None:
    """D: the median is at most 300 characters, and nothing is longer than what a program itself printed."""
    failures = [read_page(s.name).text for s in ALL if read_page(s.name).text.startswith("ERROR ")]
    assert statistics.median(map(len, failures)) <= MEDIAN_CHARS
    long = {s.name: len(read_page(s.name).text) for s in ALL if len(read_page(s.name).text) > MOST_CHARS}
    assert set(long) <= LONG_BY_NATURE, long


def test_no_text_names_what_a_model_does_not_have() -> None:
    """A6, C: no Python of the host, no options of the command line, no constructor's arguments."""
    foreign = re.compile(
        r"env\.\w+\(|Limits\(|attach\(|Service\(|cpu_seconds|idle_seconds|keep_output_bytes|--allow|--timeout|result\.\w+"
    )
    for situation in ALL:
        page = read_page(situation.name)
        ours = "\n".join(line for line in page.text.splitlines() if re.match(r"(ERROR|HINT|NOTICE|EFFECTS|NEXT TOOL|\[)", line))
        assert not foreign.search(ours), (situation.name, foreign.search(ours))
        assert "proxy" not in ours or situation.place == "allowing", situation.name  # A7
        assert "download" not in ours.lower(), situation.name  # A15


def test_every_tool_and_argument_in_a_hint_is_there_for_its_reader() -> None:
    call = re.compile(r"\b([a-z_]{3,})\(([^()]*)\)")
    for situation in ALL:
        page = read_page(situation.name)
        tools = dict(re.findall(r"^(\w+)\((.*)\)$", page.tools, re.MULTILINE))
        arguments = {name: set(re.findall(r"\w+", listed)) for name, listed in tools.items()}
        every = set().union(*arguments.values())
        for line in page.text.splitlines():
            if not re.match(r"(HINT|NOTICE|NEXT TOOL)", line):
                continue
            for name, given in call.findall(line):
                if name in arguments:
                    named = set(re.findall(r"(\w+)=", given))
                    assert named <= arguments[name], (situation.name, line)
            for argument in re.findall(r"\b([a-z]+_[a-z_]+)=", line):
                assert argument in every, (situation.name, argument)
            if line.startswith("NEXT TOOL: "):
                assert line.removeprefix("NEXT TOOL: ") in tools, (situation.name, line)


def test_each_situation_has_its_own_name_and_a_key() -> None:
    assert len(BY_NAME) == len(ALL)
    assert {path.stem for path in TEXTS.glob("*.txt")} == set(BY_NAME)
    assert all(len(s.key) > 10 and len(s.wrong) > 5 for s in ALL)


def test_a_draw_is_the_same_for_a_seed_and_gives_nothing_away(tmp_path: Path) -> None:
    assert main(["draw", "--seed", "3", "--count", "12", str(tmp_path / "a"), "--keys", str(tmp_path / "a.json")]) == 0
    draw(tmp_path / "b", tmp_path / "b.json", 3, 12)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [f"{n:03}.txt" for n in range(1, 13)]
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    for file, known in json.loads((tmp_path / "a.json").read_text())["keys"].items():
        page = (tmp_path / "a" / file).read_text()
        assert page == (tmp_path / "b" / file).read_text()
        assert known["right"] not in page
        assert not page.startswith(known["situation"])
