"""An agent writes a small web app, uses it in the browser of its sandbox, reads an error, fixes the bug and sees it gone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent import ActionRegistry, Agent, FunctionCallingLanguage, Goal, ScriptedModel
from agent.tools import finish_action, sandbox_tools
from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.docker.images.images import ensure_image

from .browser import browser

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
PORT = 8765
URL = f"http://127.0.0.1:{PORT}/"
PAGE = """<!doctype html><title>Greeter</title>
<style>body{font:18px sans-serif;margin:3em}button{font:inherit}</style>
<h1>Greeter</h1>
<form onsubmit="greet(event)"><label>Name <input id=name required></label> <button>Greet</button></form>
<p id=greeting></p>
<script>
function greet(event) {
  event.preventDefault();
  document.getElementById('greting').textContent = 'Hello, ' + document.getElementById('name').value + '!';
}
</script>
"""
TOOLS = ("write", "edit", "run", "wait_for", "browse", "browse_interact", "screenshot")


def call(tool: str, **args: Any) -> Mapping[str, Any]:
    return {"tool": tool, "args": args}


GREET = call(
    "browse_interact",
    steps=[{"action": "fill", "target": "#name", "value": "Ann"}, {"action": "click", "target": "button"}],
)
SCRIPT = [
    call("write", path="app/index.html", content=PAGE),
    call("run", command=f"python3 -m http.server {PORT} --bind 127.0.0.1 --directory app", background=True),
    call("wait_for", port=PORT),
    call("browse", url=URL),
    GREET,
    call("screenshot", path="before.png"),
    call("edit", path="app/index.html", old_text="'greting'", new_text="'greeting'"),
    call("browse", url=URL),
    GREET,
    call("screenshot", path="after.png"),
    call("finish", summary="The greeting is shown."),
]


@pytest.fixture
def env() -> Iterator[DockerEnvironment]:
    ensure_image(connect(), "gamebox/browser", report=print, rebuild_stale=True)
    with DockerEnvironment(image="gamebox/browser", limits=Limits(memory_bytes=1 << 30)) as made:
        yield made


def test_an_agent_fixes_a_web_app_that_it_sees(env: DockerEnvironment, tmp_path: Path) -> None:
    registry = ActionRegistry([*sandbox_tools(TOOLS), finish_action()])
    agent = Agent([Goal("Write a greeter.")], FunctionCallingLanguage(), registry, ScriptedModel(SCRIPT), env)
    outcome = agent.execute("Write a greeter.")
    assert outcome.ok, outcome
    answers: list[dict[str, Any]] = [dict(step.envelope or {}) for step in outcome.steps]
    assert all(answer["tool_executed"] for answer in answers), answers

    opened, used, fixed = answers[3]["result"], answers[4]["result"], answers[8]["result"]
    assert (opened["browser"], opened["title"]) == (True, "Greeter")
    assert 'textbox "Name"' in opened["outline"]
    [error] = used["console"]
    assert error["text"].startswith("TypeError: Cannot set properties of null")
    assert error["place"] == f"{URL}:9"
    assert any("console error" in change for change in used["steps"][1]["changes"])
    assert fixed["console"] == []
    assert "+ text: Hello, Ann!" in fixed["steps"][1]["changes"]

    artifacts = Path(os.environ.get("GAMEBOX_TEST_ARTIFACTS", tmp_path))
    for name in ("before.png", "after.png"):
        env.download(name, tmp_path / name).unwrap()
        if artifacts != tmp_path:
            shutil.copy(tmp_path / name, artifacts / f"web-app-{name}")
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "after.png").read_bytes()

    with env.forward(PORT).unwrap() as forward, browser(tmp_path / "profile") as host:
        host.call("Page.enable")
        host.call("Page.navigate", url=forward.url)
        deadline = time.monotonic() + 60
        there = "document.readyState == 'complete' && document.title"
        while host.value(there) != "Greeter" and time.monotonic() < deadline:
            time.sleep(0.05)
        host.value("document.getElementById('name').value = 'Bo'; document.querySelector('button').click()")
        assert host.value("document.getElementById('greeting').textContent") == "Hello, Bo!"
