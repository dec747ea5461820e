"""Exports of runs: formats hold for any run, nothing hostile becomes code or markup, and a script does what the run did."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from agent.cli.app import main
from agent.cli.trajectory import FORMATS, exported
from agent.hub import default
from agent.record.store import RunRecord, StepRecord
from agent.views.step_view import readable_diff
from agent.views.trajectory import page_limits
from agent.views.trajectory.atif import atif
from agent.views.trajectory.comparison import differences
from agent.views.trajectory.mini import mini
from agent.views.trajectory.page import page
from agent.views.trajectory.page_limits import LEAST_CHARS, MOST_CHARS, MOST_PAGE_CHARS, bounded
from agent.views.trajectory.replay import replay
from agent.views.trajectory.run_file import from_dict, from_file, to_dict
from agent.views.trajectory.run_lookup import equip_from
from agent.views.trajectory.shell_script import shell_script
from sandbox import LocalEnvironment
from sandbox.errors import SandboxError
from tests.unit.agent.record.recorded_runs import FEW, SCRIPT, real_run, runs


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def recorded(workspace: Path) -> RunRecord:
    return real_run(workspace)


@FEW
@given(runs())
def test_a_run_comes_back_from_its_file(run: RunRecord) -> None:
    assert from_dict(json.loads(exported(run, "json"))) == from_dict(to_dict(run))


@FEW
@given(runs())
def test_an_atif_trajectory_keeps_the_rules_of_the_format(run: RunRecord) -> None:
    def check(data: dict[str, Any]) -> None:
        assert data["steps"][0]["source"] == "user"
        assert [step["step_id"] for step in data["steps"]] == list(range(1, len(data["steps"]) + 1))
        embedded = [each["trajectory_id"] for each in data.get("subagent_trajectories", [])]
        assert len(set(embedded)) == len(embedded) == len([each for each in embedded if each])
        for step in data["steps"]:
            assert isinstance(step["message"], str)
            calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
            assert all(isinstance(call["arguments"], dict) for call in step.get("tool_calls", []))
            for result in step.get("observation", {"results": []})["results"]:
                assert result.get("source_call_id") in {None, *calls}
                assert isinstance(result["content"], str)
                assert all(ref["trajectory_id"] in embedded for ref in result.get("subagent_trajectory_ref", []))
            if step.get("llm_call_count") == 0:
                assert "metrics" not in step
        for each in data.get("subagent_trajectories", []):
            check(each)

    check(json.loads(json.dumps(atif(run, "1"), allow_nan=False)))


@FEW
@given(runs())
def test_a_mini_trajectory_ends_and_answers_its_calls(run: RunRecord) -> None:
    data = json.loads(json.dumps(mini(run, "1"), allow_nan=False))
    assert data["trajectory_format"] == "mini-swe-agent-1.1"
    roles = [message["role"] for message in data["messages"]]
    assert (roles[0], roles[-1] == "exit") == ("user", run.status not in (None, "paused"))
    calls = [call["id"] for message in data["messages"] for call in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in data["messages"] if message["role"] == "tool"]
    assert set(answered) <= set(calls)
    assert all(isinstance(message["content"], str) for message in data["messages"])


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the text of its body."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.shown += data


@FEW
@given(runs())
def test_nothing_that_a_run_says_becomes_markup(run: RunRecord) -> None:
    plain = Elements(page(RunRecord(run="", task="")))
    text = page(run)
    text.encode()  # no half characters
    found = Elements(text)
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in plain.tags} | {
        "article", "div", "pre", "details", "summary", "span", "p", "li",
    }  # fmt: skip
    assert [tag for tag, _ in found.tags].count("script") == 1
    for tag, attributes in found.tags:
        assert not {"src", "href", "style", "onclick", "onload", "onerror"} & set(attributes), (tag, attributes)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


def test_a_page_says_all_of_a_real_run(recorded: RunRecord) -> None:
    found = Elements(page(recorded))
    assert [a["id"] for t, a in found.tags if t == "article"] == [f"step-{n}" for n in range(1, len(SCRIPT) + 1)]
    for said in (
        "do <b>it</b>",
        "look\nfirst",
        "echo start > log.txt",
        "[no output; exit code 3]",
        "path_not_found",
        "all </script> done",
        "+x = '2'",
    ):
        assert said in found.shown, said
    policy = next(a["content"] for t, a in found.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_huge_answer_is_folded_and_cut() -> None:
    output = "x" * (3 * MOST_CHARS)
    step = StepRecord.of(1, tool="run", args={"command": "yes"}, envelope={"tool_executed": True, "result": {"output": output}}
    )
    text = page(RunRecord(run="r", task="t", steps=[step]))
    assert len(text) < 2 * MOST_CHARS
    assert "characters are left out here" in text
    assert "<details><summary>" in text


def test_a_run_that_no_browser_could_hold_is_cut_to_what_one_can() -> None:
    def step(number: int) -> StepRecord:
        answer = {"result": {"output": "x" * MOST_CHARS}}
        return StepRecord.of(number, tool="run", thought="y" * 100, envelope=answer, approved_args=1)

    part = RunRecord(run="c", task="t", steps=list(map(step, range(200))))
    run = RunRecord(run="r", task="t", steps=part.steps, subruns=[part])
    shown = bounded(run)
    assert shown == bounded(run) != run
    for each in (shown, shown.subruns[0]):
        lengths = [len(s.envelope["result"]["output"]) for s in each.steps if s.envelope]
        assert all(LEAST_CHARS <= length <= MOST_PAGE_CHARS // 400 for length in lengths)
        assert {(s.thought, s.approved_args) for s in each.steps} == {("y" * 100, 1)}
    assert bounded(replace(run, steps=run.steps[:3], subruns=[])) == replace(run, steps=run.steps[:3], subruns=[])


@pytest.mark.parametrize(
    "args", [{"k" * 300_000: 1}, {"a": [1] * 22_000}, {"a": [[[]] * 100] * 220}], ids=["names", "numbers", "lists"]
)
@pytest.mark.exhaustive
def test_names_and_numbers_take_their_room_too(args: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3_000_000
    monkeypatch.setattr(page_limits, "MOST_PAGE_CHARS", most)
    steps = [StepRecord.of(n, tool="other", args=args) for n in range(1, 21)]
    shown = bounded(RunRecord(run="r", task="t", steps=steps))
    assert sum(len(json.dumps(step.args, indent=2)) for step in shown.steps) < most
    assert "left out" in json.dumps(shown.steps[0].args, ensure_ascii=False)


def test_a_diff_of_very_many_odd_characters_is_told_without_marks() -> None:
    new = ("\u200b" * 1900 + "\n") * 20
    step = StepRecord.of(1, tool="edit", args={"path": "a", "old_text": "", "new_text": new})
    text = page(RunRecord(run="r", task="t", steps=[step]))
    assert "U+200B U+200B" in text
    assert text.count("<span") < 1000


def test_very_many_odd_characters_are_told_without_marks() -> None:
    step = StepRecord.of(1, tool="run", envelope={"tool_executed": True, "result": "\u2028\ud800\u202e" * 50_000})
    text = page(RunRecord(run="r", task="t\u202e", steps=[step]))
    assert "U+2028 U+D800 U+202E" in text
    assert '<span class="odd">U+202E</span>' in text
    assert len(text) < 3_000_000
    assert not re.search("[\u2028\u202e]", text)


def test_a_diff_is_read_without_hashes_and_binary_bytes() -> None:
    patch = (
        "diff --git a/x b/x\nindex 12..34 100644\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-index a\n+index b\n index c\n"
        "diff --git a/y b/y\nnew file mode 100644\nindex 00..11\nGIT binary patch\nliteral 5\nzcabc\n\n"
        "diff --git a/z b/z\nindex 0..1\n--- a/z\n+++ b/z\n@@ -1 +1 @@\n-a\u2028b\n+GIT binary patch"
    )
    assert readable_diff(patch).split("\n") == [
        "diff --git a/x b/x", "--- a/x", "+++ b/x", "@@ -1 +1,2 @@", "-index a", "+index b", " index c", "diff --git a/y b/y",
        "new file mode 100644", "(a binary file)", "diff --git a/z b/z", "--- a/z", "+++ b/z", "@@ -1 +1 @@", "-a\u2028b",
        "+GIT binary patch",
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_the_script_of_a_run_does_what_the_run_did(recorded: RunRecord, workspace: Path, tmp_path: Path) -> None:
    script = tmp_path / "again.sh"
    script.write_text(shell_script(recorded))
    folder = tmp_path / "fresh"
    folder.mkdir()
    done = subprocess.run(["bash", str(script)], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert tree(folder) == tree(workspace), done.stderr
    assert tree(folder)["sub/where"].startswith("sub\nme\n")
    assert "exit code 3" in done.stderr


@FEW
@given(runs())
def test_any_script_is_a_script_and_runs_nothing_from_words(run: RunRecord) -> None:
    """Thoughts, tasks and answers stay comments; the script parses, whatever the commands are: those are quoted."""
    checked = subprocess.run(
        ["bash", "-n"], input=shell_script(run).encode(), capture_output=True, timeout=20, check=False
    )
    assert checked.returncode == 0, checked.stderr
    words = [StepRecord.of(step.number, thought=step.thought, envelope=step.envelope) for step in run.steps]
    wordy = replace(run, steps=words, subruns=[])
    body = shell_script(wordy).split("# --- step 1", 1)[-1] if wordy.steps else ""
    assert all(line.startswith("#") or not line for line in body.split("\n")[1:]), body


@pytest.mark.exhaustive
def test_the_same_run_twice_does_not_differ(recorded: RunRecord, tmp_path: Path) -> None:
    again = real_run(tmp_path)
    assert differences(recorded, again) == []


@pytest.mark.exhaustive
def test_what_differs_is_said(recorded: RunRecord, tmp_path: Path) -> None:
    script = [*SCRIPT[:1], {"tool": "think", "args": {"thought": "hm"}}, *SCRIPT[1:6], *SCRIPT[7:]]
    (tmp_path / "log.txt").write_text("was here")
    script[5] = {
        "tool": "run",
        "args": {"command": "pwd | sed 's/.*\\///' > where; echo $WHO >> where; cat a.py >> where"},
    }
    other = real_run(tmp_path, [*script[:-1], {"tool": "read", "args": {"path": "where"}}, script[-1]])
    found = differences(recorded, other)
    assert [(d.kind, d.step_a, d.step_b) for d in found if d.kind != "answer"] == [
        ("only_b", None, 2), ("only_a", 7, None), ("only_b", None, 14),
    ]  # fmt: skip


@FEW
@given(runs())
def test_a_run_does_not_differ_from_itself(run: RunRecord) -> None:
    assert differences(run, from_dict(json.loads(exported(run, "json")))) == differences(run, run) == []


@pytest.mark.exhaustive
def test_a_replay_shows_what_is_different_now(recorded: RunRecord, tmp_path: Path) -> None:
    equip = equip_from(default())
    with LocalEnvironment(workspace=tmp_path) as fresh:
        assert [step.number for step, difference in replay(recorded, fresh, equip) if difference] == []
    other = tmp_path / "other"
    (other / "made").mkdir(parents=True)
    (other / "missing").write_text("here now\n")
    with LocalEnvironment(workspace=other) as changed:
        found = {step.number: difference for step, difference in replay(recorded, changed, equip) if difference}
    assert 7 in found
    assert "+here now" in found[7].lines


@pytest.mark.exhaustive
def test_the_commands(recorded: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tmp_path / "run.json"
    stored.write_text(exported(recorded, "json"))

    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["runs", *args])
        return (int(ended.value.code or 0), *capsys.readouterr())

    for form in FORMATS:
        target = tmp_path / f"out.{form}"
        code, out, _ = call("export", str(stored), "--format", form)
        assert (code, call("export", str(stored), "--format", form, "-o", str(target))[0], target.read_text()) == (
            0,
            0,
            out,
        )
    assert from_file(tmp_path / "out.json") == from_file(stored)
    assert call("diff", str(stored), str(tmp_path / "out.json"))[:2] == (0, "no differences\n")
    other = json.loads(stored.read_text())
    other["steps"][0]["args"]["command"] = "false"
    (tmp_path / "other.json").write_text(json.dumps(other))
    code, out, _ = call("diff", str(stored), str(tmp_path / "other.json"))
    assert code == 1
    assert "only in the first, step 1: run" in out
    code, out, _ = call("diff", str(stored), str(tmp_path / "other.json"), "--json")
    assert (code, json.loads(out)["same"], len(json.loads(out)["differences"])) == (1, False, 2)
    assert call("replay", str(stored), "--local", "--yes")[:2] == (0, "no differences\n")
    code, _, err = call("export", str(stored), "--format", "pdf")
    assert code == 2
    assert "pdf" in err
    assert "hint:" in err
    code, _, err = call("export", str(stored), "-o", str(tmp_path / "no" / "folder"))
    assert (code, "cannot be written" in err) == (2, True)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "other"}', "nonsense", '{"format": "gamebox-run-1", "steps": 3}', "[" * 100_000],
)
def test_a_file_that_is_no_run_is_refused_with_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(SandboxError) as refused:
        from_file(path)
    assert str(path) in refused.value.message
    assert "export" in refused.value.hint
