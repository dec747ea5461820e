"""The page of a run in a real browser: searched and gone through by keys; it loads nothing, and runs nothing that a run says."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from agent.core.budget import Usage
from agent.record.store import RunRecord, StepRecord
from agent.views.trajectory.page import page
from tests.programs import run_gamebox

from .browser import PROGRAM, browser

HOSTILE = (
    "</pre></details><script>window.owned=1</script><img src=x onerror='window.owned=1'>"
    "<style>body{display:none}</style>&lt;\u202egnp.exe\x1b]0;title\x07"
)


@pytest.fixture(scope="module", autouse=True)
def needs_a_browser() -> None:
    if PROGRAM is None and os.environ.get("GAMEBOX_REQUIRE_ENGINE") == "1":
        pytest.fail("there is no chromium")
    if PROGRAM is None:
        pytest.skip("there is no chromium")


def answered(output: str, exit_code: int = 0) -> dict[str, object]:
    result = {"output": output, "exit_code": exit_code, "id": "c1"}
    return {
        "tool_executed": True,
        "result": result,
        "timestamp": "2026-01-01T00:00:00.000+00:00",
        "duration_ms": 1.0,
        "notices": [],
    }


RUN = RunRecord(
    run="r1",
    task=f"mend it {HOSTILE}",
    agent=HOSTILE,
    status="finished",
    usage=Usage(calls=3, input_tokens=10, output_tokens=5, cost_usd=0.25),
    steps=[
        StepRecord.of(1, tool="run", thought=HOSTILE, args={"command": HOSTILE}, envelope=answered(HOSTILE), seconds=1.5),
        StepRecord.of(2, tool="edit", args={"path": "a.py", "old_text": "was", "new_text": "is"},
            envelope={**answered(""), "result": {"path": "a.py", "diff": "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-was\n+is"}},
            usage=Usage(calls=1, input_tokens=7, output_tokens=2, cost_usd=0.125),
        ),
        StepRecord.of(3, tool="run", args={"command": "make noise"}, envelope=answered("\x1b[31mnoise\x1b[0m\n" * 5000, 2)),
        StepRecord.of(4, tool=HOSTILE, args={HOSTILE: HOSTILE}, envelope=None),
    ],
    result={"summary": HOSTILE},
)  # fmt: skip


def test_a_page_in_a_browser(tmp_path: Path) -> None:
    written = tmp_path / "run.html"
    written.write_text(page(RUN), encoding="utf-8")
    (tmp_path / "profile").mkdir()
    with browser(tmp_path / "profile") as seen:
        seen.open(written)
        # nothing that the run says became part of the page
        assert seen.value("window.owned") is None
        assert seen.value("document.querySelectorAll('img, iframe, link, a, object').length") == 0
        assert seen.value("document.querySelectorAll('script').length") == 1
        assert seen.value("getComputedStyle(document.body).display") == "block"
        assert "\u202e" not in seen.value("document.documentElement.textContent")
        assert "<script>window.owned=1</script>" in seen.value("document.getElementById('step-1').textContent")
        # what a browser would forbid was not tried, and the page's own style and script are not forbidden
        assert not [e for e in seen.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")], seen.events
        requested = [e["params"]["request"]["url"] for e in seen.events if e["method"] == "Network.requestWillBeSent"]
        assert [url for url in requested if url != written.as_uri()] == []
        assert seen.value("getComputedStyle(document.querySelector('nav')).position") == "sticky"
        # steps, costs, diffs, folding
        assert (
            seen.value("[...document.querySelectorAll('article')].map(a => a.id).join()")
            == "step-1,step-2,step-3,step-4"
        )
        assert "$0.1250" in seen.value("document.querySelector('#step-2 .spent').textContent")
        assert seen.value("document.querySelector('#step-2 .add').textContent") == "+is"
        assert seen.value("document.querySelector('#step-3 .answer').textContent.startsWith('noise\\nnoise')") is True
        assert seen.value("document.querySelector('#step-3 details').open") is False
        # keys
        here = "(document.querySelector('.here') || {id: ''}).id"
        walked = []
        for key in ("j", "j", "j", "j", "j", "k"):
            seen.press(key)
            walked.append(seen.value(here))
        assert walked == ["step-1", "step-2", "step-3", "step-4", "step-4", "step-3"]
        seen.press("e")
        assert seen.value("document.querySelector('#step-3 details').open") is True
        seen.press("/")
        for key in "noise":
            seen.press(key)
        assert seen.value("document.getElementById('count').textContent") == "1 of 4"
        assert (
            seen.value("[...document.querySelectorAll('article')].filter(a => !a.hidden).map(a => a.id).join()")
            == "step-3"
        )
        seen.press("Escape")
        seen.press("k")
        assert seen.value(here) == "step-3"
        # the policy holds in the browser: no script that is put in later runs, and nothing can be fetched
        put_in = "const s = document.createElement('script'); s.textContent = 'window.owned = 2'; document.body.append(s)"
        seen.value(put_in)
        assert seen.value("window.owned") is None
        assert any("Content Security Policy" in str(e) for e in seen.events)


def test_a_page_of_ten_thousand_steps(tmp_path: Path) -> None:
    """It is there, is gone through and is searched; with ten megabyte-long lines among them."""
    steps = [
        StepRecord.of(n, tool="run", thought="think", args={"command": "ls"}, envelope=answered(f"line {n}\n" * 40))
        for n in range(1, 10_001)
    ]
    for n in range(1000, 10_001, 1000):
        steps[n - 1] = StepRecord.of(n, tool="run", args={"command": "y" * 5_000_000}, envelope=answered(HOSTILE * 40_000))
    written = tmp_path / "run.html"
    written.write_text(page(RunRecord(run="r1", task="much", steps=steps)), encoding="utf-8")
    assert written.stat().st_size < 60_000_000
    (tmp_path / "profile").mkdir()
    with browser(tmp_path / "profile") as seen:
        seen.open(written)
        assert seen.value("document.querySelectorAll('article').length") == 10_000
        assert seen.value("window.owned") is None
        seen.press("j")
        assert seen.value("document.querySelector('.here').id") == "step-1"
        seen.press("/")
        for key in "line 4321":
            seen.press(key)
        deadline = time.monotonic() + 120
        while (count := seen.value("document.getElementById('count').textContent")) != "1 of 10000":
            assert time.monotonic() < deadline, count  # it may have searched for a part of the words already
            time.sleep(0.05)
        seen.press("Escape")
        seen.press("j")
        assert seen.value("document.querySelector('.here').id") == "step-4321"
        assert not [e for e in seen.events if e["method"] == "Runtime.exceptionThrown"], seen.events


def test_what_commands_changed_is_on_the_page(tmp_path: Path) -> None:
    """Of a run with --record-changes: as diffs, each at its step, whatever is in the files."""
    repo, state = tmp_path / "repo", {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    repo.mkdir()
    (repo / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    script = [
        {"tool": "run", "args": {"command": "sed -i 's/a - b/a + b/' calc.py"}},
        {"tool": "run", "args": {"command": "cat calc.py"}},
        {"tool": "run", "args": {"command": "echo '</pre><script>window.owned=1</script>' > page; printf '\\0\\1' > bin"}},
        {"tool": "finish", "args": {"summary": "done"}},
    ]
    (tmp_path / "steps.json").write_text(json.dumps(script))

    def gamebox(*args: str) -> None:
        done = run_gamebox(*args, env=state)
        assert done.returncode == 0, done.stderr

    steps = ["--script", str(tmp_path / "steps.json"), "--repo", str(repo), "--agent", "coding", "--local"]
    gamebox("agent", "mend it", *steps, "--record-changes")
    gamebox("runs", "export", "last", "-o", str(tmp_path / "run.html"))
    (tmp_path / "profile").mkdir()
    with browser(tmp_path / "profile") as seen:
        seen.open(tmp_path / "run.html")
        assert seen.value("document.querySelector('#step-1 .changes .add:last-of-type').textContent") == "+    return a + b"
        assert seen.value("document.querySelector('#step-1 .changes .del:last-of-type').textContent") != ""
        assert seen.value("document.querySelectorAll('#step-2 .changes').length") == 0
        told = seen.value("document.querySelector('#step-3 .changes').textContent")
        assert "(a binary file)" in told
        assert "+</pre><script>window.owned=1</script>" in told
        assert seen.value("window.owned") is None
