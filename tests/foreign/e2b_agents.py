"""Frameworks that know E2B, at a service of Gamebox: the lines of their pages, with scripted models in the place of real ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ADD = "seq 10 > numbers.txt; awk '{s += $1} END {print s}' numbers.txt; pwd; id -un"


def run_page(page: str, model: str, scripted: Any) -> dict[str, Any]:
    """Run the lines of a page, with ``scripted`` in the place of its ``model``; return its variables."""
    text = (ROOT / "docs/how-to/integrations" / page).read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert model in lines
    variables = {"SCRIPTED": scripted}
    exec(lines.replace(model, "SCRIPTED"), variables)  # of our own page
    return variables


def test_openai_agents() -> None:
    pytest.importorskip("agents.extensions.sandbox.e2b")
    from agents.testing import ScriptedModel, assistant_message, function_call

    steps = [[function_call("exec_command", {"cmd": ADD}, call_id="1")], [assistant_message("The sum is 55.")]]
    result = run_page("openai-agents.md", '"gpt-5"', ScriptedModel(steps))["result"]
    assert result.final_output == "The sum is 55."
    (output,) = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "exited with code 0" in output
    assert "55\n/workspace\nuser\n" in output


def test_langchain_e2b() -> None:
    pytest.importorskip("langchain_e2b")
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, *_: Any, **__: Any) -> Scripted:
            return self

    calls = [
        ("execute", {"command": ADD}),
        ("write_file", {"file_path": "/home/user/notes.txt", "content": "one\ntwo\n"}),
        ("edit_file", {"file_path": "/home/user/notes.txt", "old_string": "two", "new_string": "three"}),
        ("grep", {"pattern": "three", "path": "/home/user", "output_mode": "content"}),
        ("read_file", {"file_path": "/home/user/notes.txt"}),
    ]
    messages = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}]) for name, args in calls]
    scripted = Scripted(messages=iter([*messages, AIMessage("Done.")]))
    result = run_page("langchain-e2b.md", '"anthropic:claude-sonnet-4-5"', scripted)["result"]
    added, _, edited, found, read = [message.text for message in result["messages"] if message.type == "tool"]
    assert added.startswith("55\n/home/user\nuser\n")
    assert "1 instance" in edited
    assert "three" in found
    assert "three" in read


def test_smolagents() -> None:
    pytest.importorskip("smolagents")
    from smolagents import ChatMessage, Model

    class Scripted(Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(model_id="scripted")
            self._steps = iter(["total = sum(range(1, 11))\nprint(total)", "import os\nfinal_answer([total, os.getcwd()])"])

        def generate(self, *_: Any, **__: Any) -> Any:
            return ChatMessage(role="assistant", content=f"Thought: the next step.\n<code>\n{next(self._steps)}\n</code>")

    assert run_page("smolagents.md", "InferenceClientModel()", Scripted())["result"] == [55, "/home/user"]


def test_harbor(tmp_path: Path) -> None:
    """Harbor builds a template from the task's Dockerfile; its oracle solves the task, and the task's own test says that it did."""
    task = tmp_path / "sum"
    files = {
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 120.0\n',
        "instruction.md": "Write the sum of the numbers from 1 to 10 into /home/user/sum.txt.\n",
        "environment/Dockerfile": "FROM gamebox/e2b\nWORKDIR /home/user\nRUN seq 10 > numbers.txt\n",
        "solution/solve.sh": "#!/bin/sh\nawk '{s += $1} END {print s}' /home/user/numbers.txt > /home/user/sum.txt\nid -un\n",
        "tests/test.sh": '#!/bin/sh\ngrep -cx 55 /home/user/sum.txt > /logs/verifier/reward.txt\n',
    }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
        (task / name).chmod(0o755)
    command = [str(Path(sys.executable).with_name("harbor")), "run", "--path", str(task), "--agent", "oracle", "--yes"]
    command += ["--env", "e2b", "--jobs-dir", str(tmp_path / "jobs")]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    (log,) = tmp_path.glob("jobs/*/sum__*/trial.log")
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in log.read_text(), log.read_text()
    (result,) = tmp_path.glob("jobs/*/sum__*/result.json")
    assert json.loads(result.read_text())["verifier_result"]["rewards"] == {"reward": 1.0}
