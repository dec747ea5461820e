"""codeact and swe_agent led by a model behind HTTP, which knows nothing but the request: what a prompt hides makes the run fail.

The model is a program: rules from what it reads to what it does, in no order of steps. What it must read is another each time (a
ticket that only the output of a command names), or real values (the id of a command, the number of a line, the words of a hint).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import AgentRun, Budget, LiteLLMModel, Prompt, RunStatus, hub
from agent.hub import Setting, build, catalogue
from sandbox import DockerEnvironment
from tests.programs import run_gamebox

from .model_server import Brain, ModelServer
from .prompted import PENS, Seen

# The image of codeact is made where it is missing, which takes a minute or two.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
TASK = "The check in check.py fails: mend the ledger, and name the ticket of the check when you are done."
LEDGER = "def balance(entries):\n    total = 0\n    for entry in entries:\n        total = entry\n    return total\n"
MENDED = LEDGER.replace("total = entry", "total += entry")
# The first time it takes too long. A second run has the time for that, if the first was ended before it came so far.
CHECK = """import pathlib, time
import ledger
seen = pathlib.Path('/tmp/TICKET')
seconds = 2 if seen.exists() else 15
seen.touch()
time.sleep(seconds)
found = ledger.balance([3, 4])
assert found == 7, f'balance([3, 4]) of ledger.py is {found}, ticket TICKET'
print('all checks passed')
"""
FAILED = re.compile(r"AssertionError: balance\(\[3, 4\]\) of (\S+) is 4, ticket (\w+)")
RUN, LOGS, CELL, OPEN, EDIT = (
    "Run a shell command", "Show the output of a command", "Run Python code", "Open a file", "Replace the lines of the open file",
)  # fmt: skip
Hide = Callable[[str], str]


def read(request: dict[str, Any]) -> Seen:
    return Seen(Prompt(tuple(request["messages"]), tuple(request.get("tools", ()))))


def check_of(seen: Seen) -> str:
    """The command that shows whether it is done; only the user has said which."""
    named = re.search(r"The check in (\S+) fails", seen.said)
    assert named, "what am I to do?"
    return f"python3 {named[1]}"


def ticket_of(seen: Seen) -> str:
    named = re.search(r"ticket (?!of)(\w+)", seen.said.replace(TASK, ""))
    assert named, "which ticket is it?"
    return named[1]


def codeact(language: str) -> Brain:
    def brain(request: dict[str, Any]) -> Any:
        seen = read(request)
        pen, result = PENS[language], seen.result
        if not seen.results:
            return pen(seen, RUN, {"command": check_of(seen), "timeout_seconds": 1}, "See how it fails.")
        if "ERROR timeout" in result:
            assert "background=true" in result, "what does one do about a command that takes too long?"
            return pen(seen, RUN, {"command": check_of(seen), "background": True}, "Then in the background.")
        if failed := FAILED.search(result):
            code = f"p = '{failed[1]}'\ns = open(p).read()\nopen(p, 'w').write(s.replace('= entry', '+= entry'))\nprint('written')"
            return pen(seen, CELL, {"code": code}, f"It keeps the last entry only; it is ticket {failed[2]}.")
        if "all checks passed" in result:
            return pen(seen, "End the run", {"summary": f"Mended, ticket {ticket_of(seen)}."}, "Done.")
        if re.search(r"^written$", result, re.MULTILINE):
            assert "kernel with Python" in seen.now, "is there a kernel now?"
            return pen(seen, RUN, {"command": check_of(seen), "timeout_seconds": 20}, "Check it.")
        started = re.findall(r"running in the background with id (c\d+)", seen.said)
        assert started, f"what came of it? {result[:300]!r}"
        assert started[-1] in result or "[running" in result, f"what came of it? {result[:300]!r}"
        return pen(seen, LOGS, {"id": started[-1], "follow": True, "wait_seconds": 10}, "What does it say?")

    return brain


def swe_agent(request: dict[str, Any]) -> Any:
    seen = read(request)
    pen, result = PENS["fenced"], seen.result
    if line := re.search(r"^(\d+):( +)total = entry$", seen.now, re.MULTILINE):
        args = {"start": line[1], "end": line[1], "text": f"{line[2]}total += entry"}
        return pen(seen, EDIT, args, f"It keeps the last entry only; it is ticket {ticket_of(seen)}.").text
    if not seen.results:
        return pen(seen, RUN, {"command": check_of(seen), "timeout_seconds": 1}, "See how it fails.").text
    if "ERROR timeout" in result:
        longer = re.search(r"timeout_seconds above (\d+)", result)
        assert longer, "what does one do about a command that takes too long?"
        return pen(seen, RUN, {"command": check_of(seen), "timeout_seconds": int(longer[1]) + 19}, "It takes longer.").text
    if failed := FAILED.search(result):
        return pen(seen, OPEN, {"path": failed[1]}, f"There it is; it is ticket {failed[2]}.").text
    if "all checks passed" in result:
        return pen(seen, "End the run", {"summary": f"Mended, ticket {ticket_of(seen)}."}, "Done.").text
    assert "total += entry" in seen.now, f"what does the file look like? {seen.now[-200:]!r}"
    return pen(seen, RUN, {"command": check_of(seen), "timeout_seconds": 20}, f"Check it, ticket {ticket_of(seen)}.").text


BRAINS: dict[tuple[str, str], Brain] = {
    ("codeact", "tags"): codeact("tags"),
    ("codeact", "function_calling"): codeact("function_calling"),
    ("swe_agent", "fenced"): swe_agent,
}
STEPS = {
    "codeact": ["run", "run", "logs", "ipython", "run", "finish"],
    "swe_agent": ["run", "run", "open", "edit", "run", "submit"],
}


def without_lines(pattern: str) -> Hide:
    return lambda text: re.sub(rf"(?m)^.*(?:{pattern}).*\n?", "", text)


def without_section(title: str) -> Hide:
    return lambda text: re.sub(rf"(?ms)^## {title}\n.*?(?=^##? |\Z)", "", text)


# What is left out of the prompt, texts and tools, and what the model misses then. Tools go by their names.
HIDDEN: dict[str, tuple[Hide, str]] = {
    "task": (without_lines("The check in"), "what am I to do?"),
    "hint": (without_lines("^HINT"), "what does one do about a command that takes too long?"),
    "output": (without_lines("AssertionError"), "what came of it?|what does the file look like?|in circles"),
    "last output": (without_lines("all checks passed"), "what came of it?|in circles"),
    "id": (without_lines("running in the background"), "what came of it?"),
    "logs": (without_section("execute_logs"), "does not say how to: Show the output"),
    "ipython": (without_section("execute_ipython"), "does not say how to: Run Python"),
    "kernel": (without_section("ipython"), "is there a kernel now?"),
    "open file": (without_section("open file"), "what does the file look like?"),
    "edit": (without_section("edit"), "does not say how to: Replace the lines"),
    "other arguments": (without_lines("all as one JSON object"), "does not say how run gets other arguments"),
}
# Each where it is most at risk: what the loop and the tools say once, what the language says in each language.
OF = {
    ("codeact", "tags"): ("task", "hint", "output", "id", "logs", "ipython", "kernel"),
    ("codeact", "function_calling"): ("last output", "logs", "ipython"),
    ("swe_agent", "fenced"): ("hint", "open file", "edit", "other arguments"),
}
CASES = [(*brain, hidden) for brain in BRAINS for hidden in OF[brain]]


def hiding(brain: Brain, what: str) -> Brain:
    """``brain``, from which something is hidden in all that it is sent."""
    hide, _ = HIDDEN[what]

    def blind(request: dict[str, Any]) -> Any:
        messages = [{**m, "content": hide(m["content"]) if m.get("content") else m.get("content")} for m in request["messages"]]
        tools = [tool for tool in request.get("tools", ()) if tool["function"]["name"] != what]
        return brain({**request, "messages": messages, "tools": tools})

    return blind


@pytest.fixture(scope="module")
def box() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(image="gamebox/codeact") as environment:
        yield environment


def run_of(box: DockerEnvironment, agent: str, language: str, server: ModelServer, ticket: str) -> AgentRun:
    box.write("ledger.py", LEDGER).unwrap()
    box.write("check.py", CHECK.replace("TICKET", ticket)).unwrap()
    brain = LiteLLMModel("openai/test", api_base=server.base_url, api_key="sk-test", max_attempts=1)
    setting = Setting(
        environment=box, hub=hub.default(), brain=brain, budget=Budget(max_iterations=12),
        language=catalogue.language(language, {}),
    )  # fmt: skip
    built = build(hub.load(agent), setting)
    try:
        return built.execute(TASK)
    finally:
        for kit in getattr(built.environment, "kits", ()):
            kit.close()


@pytest.mark.parametrize(("agent", "language"), BRAINS)
def test_a_model_that_knows_its_prompt_alone_gets_it_done(agent: str, language: str, box: DockerEnvironment) -> None:
    ticket = secrets.token_hex(4)
    with ModelServer(BRAINS[agent, language]) as server:
        run = run_of(box, agent, language, server, ticket)
    assert run.status is RunStatus.finished, (run.reason, [step.envelope for step in run.steps][-2:])
    assert run.result == {"summary": f"Mended, ticket {ticket}."}
    told = [step.tool for step in run.steps]
    assert [tool for n, tool in enumerate(told) if tool != "logs" or told[n - 1] != "logs"] == STEPS[agent]
    assert box.read("ledger.py").unwrap().content == MENDED
    assert len(server.requests) == run.usage.calls == run.iterations
    assert all(("tools" in request) == (language == "function_calling") for request in server.requests)


@pytest.mark.parametrize(("agent", "language", "hidden"), CASES)
def test_what_the_prompt_hides_fails_the_run(agent: str, language: str, hidden: str, box: DockerEnvironment) -> None:
    with ModelServer(hiding(BRAINS[agent, language], hidden)) as server:
        run = run_of(box, agent, language, server, secrets.token_hex(4))
    assert run.status in (RunStatus.model_failed, RunStatus.stuck)
    assert re.search(HIDDEN[hidden][1].replace("?", r"\?"), run.reason), run.reason


@pytest.mark.parametrize(("agent", "language"), BRAINS)
def test_as_a_user_would_start_it(agent: str, language: str, tmp_path: Path) -> None:
    ticket = secrets.token_hex(4)
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "ledger.py").write_text(LEDGER)
    (repo / "check.py").write_text(CHECK.replace("TICKET", ticket))
    with ModelServer(BRAINS[agent, language]) as server:
        own = {"OPENAI_API_BASE": server.base_url, "OPENAI_API_KEY": "sk-test", "XDG_STATE_HOME": str(tmp_path / "state")}
        command = ["agent", TASK, "--repo", str(repo), "--agent", agent, "--apply", "--json"]
        command += ["--model", "openai/gpt-4o-mini"]
        other = [] if hub.load(agent).language == language else ["--language", language]
        done = run_gamebox(*command, *other, env=os.environ | own, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["applied"], told["result"]) == ("finished", True, {"summary": f"Mended, ticket {ticket}."})
    assert (repo / "ledger.py").read_text() == MENDED
