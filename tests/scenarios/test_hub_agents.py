"""codeact, swe_agent, planner and mini at work in a real sandbox, with brains that know nothing but their prompt."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from agent import ActionRegistry, AgentRun, Budget, Prompt, RunStatus, ScriptedModel, Usage, hub
from agent.core.budget import charge
from agent.core.loop.calls import carry_out
from agent.hub import Setting, build, default
from agent.tools.ipython import IPythonKit
from sandbox import DockerEnvironment, Limits

from .prompted import PENS, Seen, by_commands, by_json, by_tags

# The image of codeact is made where it is missing, which takes a minute or two.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LEDGER = "def balance(entries):\n    total = 0\n    for entry in entries:\n        total = entry\n    return total\n"
CHECK = (
    "import ledger\nassert ledger.balance([]) == 0\nfound = ledger.balance([3, 4])\n"
    "assert found == 7, f'balance([3, 4]) is {found}'\nprint('all checks passed')\n"
)
MENDED = "file.write_text(file.read_text().replace('= entry', '+= entry'))"
RUN, READ, WRITE = "Run a shell command", "Read a text file", "Write a whole text file"
FINISH = "End the run"
Brain = Callable[[Prompt], Any]


@pytest.fixture
def box(docker_env: Callable[..., DockerEnvironment]) -> DockerEnvironment:
    environment = docker_env()
    environment.write("ledger.py", LEDGER).unwrap()
    environment.write("check.py", CHECK).unwrap()
    return environment


def run_of(name: str, brain: Brain, environment: DockerEnvironment, **setting: Any) -> AgentRun:
    agents = default()
    fields: dict[str, Any] = {
        "environment": environment,
        "hub": agents,
        "brain": brain,
        "budget": Budget(max_iterations=25),
        **setting,
    }
    return build(agents.load(name), Setting(**fields)).execute("The check in check.py fails: mend the ledger.")


def decided(run: AgentRun) -> list[tuple[str | None, Any]]:
    return [(step.tool, step.args) for step in run.steps]


def mender(pen: Callable[[Seen, str, Any, str], Any]) -> Brain:
    """Runs the check, reads what it complains about, mends the line it sees, and runs the check again."""

    def brain(prompt: Prompt) -> Any:
        seen = Seen(prompt)
        assert "mend the ledger" in str(prompt)
        if not seen.result or "Result of write" in seen.result or seen.result.startswith("[replaced ledger.py"):
            return pen(seen, RUN, {"command": "python3 check.py"}, "See what the check says.")
        if re.search(r"AssertionError: balance\(\[3, 4\]\) is 4", seen.result):
            assert "[exit code 1]" in seen.result
            return pen(seen, READ, {"path": "ledger.py"}, "It forgets entries: look at it.")
        if "def balance" in seen.result:
            source = seen.result[seen.result.index("def balance") :].rstrip("\n") + "\n"
            return pen(
                seen,
                WRITE,
                {"path": "ledger.py", "content": source.replace("total = entry", "total += entry")},
                "Mend it.",
            )
        assert "all checks passed\n[exit code 0]" in seen.result
        return pen(seen, FINISH, {"summary": "It adds up now."}, "Done.")

    return brain


def test_the_same_scenario_is_the_same_in_every_language(docker_env: Callable[..., DockerEnvironment]) -> None:
    runs = {}
    for name, pen in PENS.items():
        environment = docker_env()
        environment.write("ledger.py", LEDGER).unwrap()
        environment.write("check.py", CHECK).unwrap()
        spec = hub.AgentSpec(name="m", description="d", actions=("run", "read", "write", "finish"), language=name)
        setting = Setting(environment=environment, hub=hub.Hub(), brain=mender(pen), budget=Budget(max_iterations=9))
        runs[name] = build(spec, setting).execute("The check in check.py fails: mend the ledger.")
        assert runs[name].status is RunStatus.finished, (name, runs[name].reason, runs[name].error)
        assert "total += entry" in environment.read("ledger.py").unwrap().content
    sequences = {name: decided(run) for name, run in runs.items()}
    assert [tool for tool, _ in sequences["json"]] == ["run", "read", "write", "run", "finish"]
    assert all(sequence == sequences["json"] for sequence in sequences.values()), sequences


def test_swe_agent_edits_by_what_its_window_shows(box: DockerEnvironment) -> None:
    asked: list[str] = []

    def brain(prompt: Prompt) -> Any:
        charge(Usage(calls=1, input_tokens=10))
        seen = Seen(prompt)
        asked.append(seen.last)
        if "Nothing was executed" in seen.last:
            return by_commands(seen, "Open a file", {"path": "ledger.py"}, "One block, then.")
        if "No file is open" in seen.now:
            return "I want two things.\n```\nls\n```\nand\n```\nopen ledger.py\n```"
        line = re.search(r"^(\d+):        total = entry$", seen.now, re.MULTILINE)
        if line and "lint_errors" not in seen.result:
            text = "        total += (entry"
            return by_commands(seen, "Replace the lines", {"start": line[1], "end": line[1], "text": text}, "Add it.")
        if line:
            assert "'(' was never closed" in seen.result
            assert f"{line[1]}:        total += (entry" in seen.result
            text = "        total += entry"
            return by_commands(
                seen, "Replace the lines", {"start": line[1], "end": line[1], "text": text}, "Closed rightly."
            )
        if "all checks passed" not in seen.result:
            assert "4:        total += entry" in seen.now
            return "It adds now.\n```bash\npython3 check.py\n```"
        return "Done.\n```\nexit\n```"

    run = run_of("swe_agent", brain, box)
    assert (run.status, run.result) == (RunStatus.finished, {"summary": "Done."}), (run.reason, run.error)
    assert [tool for tool, _ in decided(run)] == ["open", "edit", "edit", "run", "submit"]
    assert run.steps[1].envelope
    assert run.steps[1].envelope["code"] == "lint_errors"
    assert box.read("ledger.py").unwrap().content == LEDGER.replace("= entry", "+= entry")
    assert (len(asked), run.usage.calls) == (6, 6)  # the reply with two blocks was billed,
    assert "I want two things" not in str(run.memory.get_memories())  # and never remembered
    done = [step.envelope for step in run.steps if step.envelope and step.envelope["tool_executed"]]
    assert "[ledger.py:" not in str(done)  # nor was the window, but for the one that shows what was refused


def test_planner_works_its_plan_off_and_ends_without_a_call(box: DockerEnvironment) -> None:
    calls: list[str] = []

    def brain(prompt: Prompt) -> Any:
        seen = Seen(prompt)
        calls.append(seen.now)
        if "There is no plan yet" in seen.now:
            args = {"parent": "", "goal": "the check passes", "subtasks": ["know the fault", "mend it", "see it pass"]}
            return by_json(seen, "Add a task", args, "First a plan.")
        if waiting := re.search(r"work on next, say (\d+(?:\.\d+)*)", seen.now):
            return by_json(seen, "Change the state of a task", {"task_id": waiting[1], "state": "in_progress"}, "Take it on.")
        working = re.search(r"You are working on ([\d.]+): ([^.]+)\.", seen.now)
        assert working, seen.now
        ident, goal = working.groups()
        if goal == "know the fault" and "is 4" not in seen.result:
            return by_json(seen, RUN, {"command": "python3 check.py"}, "What does it say?")
        if goal == "mend it" and "ledger.py" not in seen.result:
            return by_json(
                seen,
                "Replace one exact",
                {"path": "ledger.py", "old_text": "= entry", "new_text": "+= entry"},
                "Mend it.",
            )
        if goal == "see it pass" and "all checks passed" not in seen.result:
            return by_json(seen, RUN, {"command": "python3 check.py"}, "Does it pass?")
        if goal == "see it pass" and "ERROR tasks_open" not in str(prompt):
            return by_json(seen, FINISH, {"summary": "too early"}, "Am I done?")
        return by_json(seen, "Change the state of a task", {"task_id": ident, "state": "verified"}, "That is shown.")

    run = run_of("planner", brain, box)
    assert run.status is RunStatus.finished, (run.reason, run.error, decided(run))
    assert run.iterations == len(calls) + 1  # the last step asked nobody
    assert "0 [verified] the check passes\n  0.0 [verified] know the fault" in run.result["summary"]
    assert "Begin by looking around" in calls[0]
    assert any("Think about what the output says" in now for now in calls)
    refused = [s.envelope["code"] for s in run.steps if s.envelope and s.envelope["tool_executed"] is not True]
    assert refused == ["tasks_open"]


def test_codeact_acts_by_shell_kernel_and_pages(docker_env: Callable[..., DockerEnvironment]) -> None:
    environment = docker_env(image="gamebox/codeact")
    environment.write("ledger.py", LEDGER).unwrap()
    environment.write("check.py", CHECK).unwrap()
    cell = "Run Python code as a cell"

    def brain(prompt: Prompt) -> Any:
        seen = Seen(prompt)
        if not seen.result:
            assert "No kernel is running" in seen.now
            return by_tags(seen, cell, {"code": "import ledger\nledger.balance([3, 4])"}, "Try it.")
        if seen.result == "Result of ipython:\n4":
            assert "an IPython kernel" in seen.now
            code = "from pathlib import Path\nfile = Path('ledger.py')\n" + MENDED
            return by_tags(seen, cell, {"code": code}, "It keeps the last entry only.")
        if re.fullmatch(r"Result of ipython:\n\d\d+", seen.result):
            command = "python3 check.py && (python3 -m http.server 8765 >/dev/null 2>&1 &) && sleep 2"
            return by_tags(seen, RUN, {"command": command}, "Check it, and show it.")
        if "all checks passed" in seen.result:
            return by_tags(
                seen, "Open a web page", {"url": "http://127.0.0.1:8765/ledger.py"}, "Look at it as others will."
            )
        if "+= entry" in seen.result:
            return "Shall I also document it?"
        if "Nobody is there" in seen.result:
            code = "file.exists() and file.read_text().count('+=')"
            return by_tags(seen, cell, {"code": code}, "The kernel still knows the file.")
        return by_tags(seen, FINISH, {"summary": "It adds up now."}, "Done.")

    run = run_of("codeact", brain, environment)
    assert run.status is RunStatus.finished, (run.reason, run.error, [s.envelope for s in run.steps])
    assert [tool for tool, _ in decided(run)] == ["ipython", "ipython", "run", "browse", "message", "ipython", "finish"]
    assert run.steps[5].envelope
    assert run.steps[5].envelope["result"]["output"] == "1\n"
    assert run.steps[4].args == {"content": "Shall I also document it?"}


def test_mini_has_one_action_and_all_that_was_said(box: DockerEnvironment) -> None:
    script = [
        "See.\n```bash\ncd /tmp && X=1 && pwd\n```",
        "```bash\npwd; echo $X; python3 check.py\n```",
        "```bash\nsed -i 's/= entry/+= entry/' ledger.py && python3 check.py\n```",
        "No block.",
        "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat ledger.py\n```",
    ]
    brain = ScriptedModel(script)
    run = run_of("mini", brain, box)
    assert (run.status, run.reason) == (RunStatus.finished, "The task was submitted."), run.error
    assert run.result == LEDGER.replace("= entry", "+= entry")
    assert [tool for tool, _ in decided(run)] == ["run", "run", "run", None, "run"]
    outputs = [(s.envelope or {}).get("result") for s in run.steps]
    assert outputs[0]
    assert outputs[0]["output"] == "/tmp\n"
    assert outputs[1]
    assert outputs[1]["output"].startswith("/workspace\n\n")  # each command has a shell of its own
    last = str(brain.prompts[-1])
    assert all(text in last for text in script[:4])


def test_a_kernel_of_jupyter_keeps_its_promises(docker_env: Callable[..., DockerEnvironment]) -> None:
    """What tests/unit/agent/tools/test_ipython.py holds of a plain kernel, of one in an image that has ipykernel."""
    environment = docker_env(image="gamebox/codeact", limits=Limits(memory_bytes=512 << 20))
    kit = IPythonKit(Setting(environment=environment, hub=hub.Hub()))
    registry = ActionRegistry(kit.actions())

    def cell(code: str, **options: Any) -> dict[str, Any]:
        action = registry.get_action("ipython")
        assert action is not None
        return carry_out(environment, action, {"code": code, **options})

    assert cell("x = 20\nprint('a')\nx + 1")["result"]["output"] == "a\n21\n"
    assert "an IPython kernel with Python 3" in kit.describe()["ipython"]
    for seconds in (1, 4, 16):  # until the machine let it print
        stopped = cell("print('so far', flush=True)\nwhile True: pass", timeout_seconds=seconds)
        if stopped["result"]["output"]:
            break
    assert (stopped["code"], stopped["result"]["output"].split("\n")[0]) == ("timeout", "so far")
    assert cell("x")["result"]["output"] == "20\n"
    flood = cell("for n in range(60_000): print('y' * 99)")
    assert (flood["result"]["total_chars"], flood["result"]["truncated"]) == (6_000_000, True)
    assert len(flood["result"]["output"]) < 40_000
    each_a_message = cell("for n in range(10_000): print('z', flush=True)")
    assert each_a_message["result"]["total_chars"] == 20_000, "none is dropped"
    for _ in range(40):  # what other programs print is there when the cell ends
        assert cell("import os; os.write(1, 'ä'.encode()); None")["result"]["output"] == "ä"
    assert cell("import subprocess; subprocess.run('seq 9999', shell=True); None")["result"]["total_chars"] == 48_888
    assert cell("import asyncio; await asyncio.sleep(600)", timeout_seconds=1)["code"] == "timeout"
    assert cell("x")["result"]["output"] == "20\n", "an interrupt of what awaits loses nothing"
    shown = cell(
        "from IPython.display import display, Image\ndisplay(Image(data=bytes.fromhex('89504e470d0a1a0a') + bytes(900)))"
    )
    assert "[image/png, " in shown["result"]["output"]
    assert "AAAA" not in shown["result"]["output"]
    assert "ZeroDivisionError" in cell("1/0")["result"]["output"]
    assert cell("%cd /tmp\n!pwd")["result"]["output"].endswith("/tmp\n")
    dead = cell("hog = [bytearray(50 << 20) for _ in range(40)]")
    assert (dead["code"], "SIGKILL" in dead["error"]) == ("kernel_died", True)
    assert "NameError" in cell("x")["result"]["output"]
    listening = environment.run("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep ' 0A '", session=None).unwrap()
    addresses = {line.split()[1].split(":")[0] for line in listening.output.splitlines()}
    assert addresses <= {
        "0100007F"
    }  # what ipykernel keeps for itself is on loopback; the kernel is reached through files


def test_an_agent_that_only_reads_leaves_nothing_that_the_next_could_run(docker_env: Callable[..., DockerEnvironment]) -> None:
    environment = docker_env()
    there = "mkdir code /tmp/tools; echo 'x = 1' > code/m.py; echo tool > /tmp/tools/run.sh; echo shared > /dev/shm/own"
    environment.run(there).unwrap()
    look = "find . ~ /tmp /dev/shm -printf '%p %y %m %s\\n' | sort; cat /tmp/tools/* /dev/shm/*"
    before = environment.run(look, session=None).unwrap().output
    left = (
        "mkdir code/__pycache__ && touch code/__pycache__/m.cpython-311.pyc; echo evil > ~/.bashrc; echo evil > /dev/shm/evil; "
        "echo evil > /tmp/tools/run.sh; mkdir /tmp/deep; touch /tmp/deep/x; chmod 0 /tmp/deep; ls() { echo evil; }; "
        "mkdir -p ~/.local/bin; for p in sh rm chmod; do printf '#!/bin/sh\\n' > ~/.local/bin/$p; chmod +x ~/.local/bin/$p; done; "
        "cd /dev/shm; seq 3000 | xargs touch"
    )
    steps = [
        {"tool": "run", "args": {"command": left}},
        {"tool": "finish", "args": {"completed": True, "summary": "Seen."}},
    ]
    agents = default()
    setting = Setting(environment=environment, hub=agents, brain=ScriptedModel(steps), inputs={"task": "Look."})
    run = build(agents.load("verifier"), setting).execute("Look.")
    assert run.ok
    assert (run.steps[0].envelope or {})["tool_executed"] is True
    assert environment.run(look, session=None).unwrap().output == before
    assert environment.run("type -t ls").unwrap().output == "file\n"
    assert environment.checkpoints().unwrap().checkpoints == ()
