"""Steps as a person sees them: the same everywhere, each diff once, every call of a reply, and live on a terminal."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.replay import stored
from agent.record import events as ev
from agent.record.store import EventLog, RunRecord, StepRecord, tree_of
from agent.views.follow import follow
from agent.views.runs_show import RunPrinter
from agent.views.screen import Screen
from agent.views.step_view import split_diff, view_of_call
from agent.views.timeline import timeline_of
from agent.views.trajectory import page as pages
from agent.views.trajectory.atif import atif
from agent.views.trajectory.mini import mini
from agent.views.trajectory.page import page
from agent.views.trajectory.run_file import from_dict, to_dict
from agent.views.trajectory.shell_script import shell_script
from sandbox.operations import EditResult, RunResult
from sandbox.text.excerpt import LEFT_OUT_CHARS, cut_middle, few_lines
from tests.unit.sandbox.cli.terminals import displays

LOG = Path(__file__).parents[3] / "formats" / "log-1.db"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path / "runs.db") as made:
        yield made


def done(result: Any) -> dict[str, Any]:
    return {
        "tool_executed": True,
        "result": result.model_dump(mode="json"),
        "timestamp": "",
        "duration_ms": 1.0,
        "notices": [],
    }


def shown(log: EventLog, run: str) -> str:
    stream = io.StringIO()
    RunPrinter(Screen(stream), 100).run(timeline_of(log, run))
    return stream.getvalue()


def followed(log: EventLog, run: str) -> str:
    stream = io.StringIO()
    follow(log, run, Screen(stream))
    return stream.getvalue()


def test_each_diff_is_shown_once(tmp_path: Path) -> None:
    """The answer to an edit has a diff, and with --record-changes the log has one more."""
    shutil.copyfile(LOG, tmp_path / "runs.db")
    (tmp_path / "runs.db").chmod(0o600)
    with EventLog(tmp_path / "runs.db") as log:
        for text in (shown(log, "whole"), followed(log, "whole"), page(tree_of(log, "whole"))):
            assert len(re.findall(r"\+ +return a \+ b", text)) == 1


DIFF = "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2"


def test_the_diff_of_an_edit_leaves_the_answer_and_its_notices_stay() -> None:
    envelope = done(EditResult(path="a.py", diff=DIFF))
    assert split_diff(DIFF, envelope) == ("", DIFF)
    assert split_diff(f"{DIFF}\nNOTICE low: Two steps are left.", envelope) == ("NOTICE low: Two steps are left.", DIFF)
    view = view_of_call(StepRecord.of(1, tool="edit", args={"path": "a.py"}, envelope=envelope))
    assert (view.answer, view.diff, view.failed) == ("", DIFF, False)


def test_a_diff_that_a_command_printed_stays_in_its_answer() -> None:
    envelope = done(RunResult(id="c1", exit_code=0, output=DIFF))
    view = view_of_call(StepRecord.of(1, tool="run", args={"command": "git diff"}, envelope=envelope))
    assert view.diff == ""
    assert view.answer == f"{DIFF}\n[exit code 0]"


def test_what_an_edit_was_to_change_is_shown_if_it_failed() -> None:
    failed = {"tool_executed": False, "code": "text_not_found", "error": "It is not there.", "result": None}
    step = StepRecord.of(1, tool="edit", args={"path": "a.py", "old_text": "was", "new_text": "is"}, envelope=failed)
    text = page(RunRecord(run="r", task="t", steps=[step]))
    assert '<span class="del">-was</span>' in text
    assert '<span class="add">+is</span>' in text


@pytest.fixture
def several(log: EventLog) -> EventLog:
    """A run with two calls in one reply, of which the second failed."""
    answers = [
        done(RunResult(id="c1", exit_code=0, output="first\n")),
        {**done(RunResult(id="c2")), "tool_executed": False},
    ]
    answers[1] |= {"code": "timeout", "error": "It took too long.", "hint": "", "effects": "none", "result": None}
    events: list[ev.Event] = [ev.RunBegan(task="t"), ev.StepBegan(step=1)]
    for index, command in enumerate(("make one", "make two")):
        reply = stored("both") if index == 0 else None
        thought = "both" if index == 0 else None
        args = {"command": command}
        events.append(
            ev.ActionDecided(step=1, index=index, reply=reply, thought=thought, tool="run", args=args, call=command)
        )
    for index, envelope in enumerate(answers):
        events.append(ev.ActionStarted(step=1, index=index, tool="run", args={}))
        events.append(ev.ActionExecuted(step=1, index=index, envelope=envelope))
    events += [ev.StepEnded(step=1, implied=False), ev.RunEnded(status="finished")]
    log.append("r", events)
    return log


def test_all_calls_of_a_reply_are_shown_and_exported(several: EventLog) -> None:
    run = tree_of(several, "r")
    assert [call.tool for call in run.steps[0].calls] == ["run", "run"]
    for text in (
        shown(several, "r"),
        followed(several, "r"),
        page(run),
        json.dumps(atif(run, "1")),
        json.dumps(mini(run, "1")),
    ):
        places = [text.index(each) for each in ("make one", "make two", "It took too long.")]
        assert places == sorted(places)
        assert "first" in text
    script = shell_script(run)
    assert "step 'n_default' 'make one'" in script
    assert "make two" in script
    again = from_dict(json.loads(json.dumps(to_dict(run))))
    assert [(call.tool, call.args, call.envelope) for call in again.steps[0].calls] == [
        (call.tool, call.args, call.envelope) for call in run.steps[0].calls
    ]


def test_calls_of_a_log_that_make_no_sense_are_refused(log: EventLog) -> None:
    log.append("r", [ev.RunBegan(task="t"), ev.StepBegan(step=1), ev.ActionDecided(step=1, index=7, reply=None)])
    with pytest.raises(Exception, match="has no call 7"):
        tree_of(log, "r")


def test_a_text_is_cut_and_says_how_much_is_left_out() -> None:
    assert few_lines("a\nb\nc\nd\ne", 4, 9) == "a\nb\nc\nd\ne"  # a mark would take the place of one line
    assert few_lines("a\nb\nc\nd\ne\nf", 4, 9) == "a\nb\n… 2 lines …\ne\nf"
    assert few_lines("x" * 12, 4, 9) == "x" * 9 + "… 3 characters more"
    text, left_out = cut_middle("x" * 1_300_000, 100)
    assert left_out == 1_299_900
    assert len(text) <= 100 + LEFT_OUT_CHARS
    assert "[... 1,299,900 characters are left out here ...]" in text
    assert cut_middle("short", 100) == ("short", 0)


STREAMING = """
import sys, time
from agent import Action, ActionRegistry, Agent, Budget, Environment, Goal, JsonLanguage, Usage
from agent.core.budget import charge
from agent.model.brain import Delta, delta_listener
from agent.views.live_view import LiveView
from agent.views.screen import Screen

REPLY = "Words that come one by one are longer than a line of this terminal has room for."

def brain(prompt):
    charge(Usage(calls=1, cost_usd=0.0812))
    listener = delta_listener()
    listener(Delta("start"))
    for word in REPLY.split(" "):
        listener(Delta("text", word + " "))
        time.sleep(0.05)
    time.sleep(0.5)
    return REPLY + '\\n{"tool": "patch", "args": {}}'

DIFF = "--- a.py\\n+++ a.py\\n@@ -1,2 +1,2 @@\\n one\\n-two\\n+2"

class Patch(Action):
    name, description, parameters = "patch", "Patches.", {"type": "object", "properties": {}}

    def execute(self, /, **kwargs):
        return {"diff": DIFF}

    def show(self, envelope):
        return envelope["result"]["diff"]

parts = [Goal(1, "do", "do it")], JsonLanguage(), ActionRegistry([Patch()]), brain, Environment()
agent = Agent(*parts, budget=Budget(max_iterations=3))
agent.hooks.append(LiveView(Screen(), agent.actions))
agent.execute("do it")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [40, 160])
def test_the_live_view_on_a_terminal(columns: int) -> None:
    """The reply as it is written, the step, its limit and the cost; then the thought, the call and a diff in colour."""
    seen, screen = displays(STREAMING, columns=columns, rows=40)
    status = re.compile(r"thinking \d+ s · step 2/3 · \$0\.(08|16)")
    assert any(status.match(line) for lines in seen for line in lines)
    if columns > 40:
        assert any("Ctrl-C pauses" in line for lines in seen for line in lines)
    streamed = [lines for lines in seen if any(line.startswith("    Words that") for line in lines)]
    assert streamed, "the reply is not shown while it is written"
    assert any("terminal has room for." in " ".join(" ".join(lines).split()) for lines in streamed)
    assert all(len(line) <= columns for lines in seen for line in lines)
    at_end = [line for line in seen[-1] if line]
    assert not any("thinking" in line for line in at_end)
    assert at_end[0].startswith("[1] Words that come one by one")
    rows = {screen.display[n].strip(): screen.buffer[n] for n in range(screen.lines)}
    assert rows["+2"][6].fg == "green"
    assert rows["-two"][6].fg == "red"


def test_the_colours_of_a_page_are_readable_in_light_and_dark() -> None:
    """WCAG AA: 4.5 to 1 for text, in both forms."""
    css = pages._file("page.css")
    assert "color-scheme: light dark" in css
    colours = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", css)}
    for form in (0, 1):
        for text in ("text", "dim", "bad", "changed", "here"):
            for behind in ("page", "box"):
                assert contrast(colours[text][form], colours[behind][form]) >= 4.5, (text, behind, form)
        for behind in ("add", "del"):
            assert contrast(colours["text"][form], colours[behind][form]) >= 7, (behind, form)


def contrast(one: str, other: str) -> float:
    lights = sorted((luminance(one), luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
