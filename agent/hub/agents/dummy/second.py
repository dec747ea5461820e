"""A part of the dummy: the kits whose actions share names with others, and tools of an MCP server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent.core.goals import Goal
from agent.hub.spec import AgentSpec

if TYPE_CHECKING:
    from agent.hub.hub import Setting

    from .expecting import Expected, ExpectingScript

NAME = "dummy_second"
DONE = "The second half was done, too."
FILE = "gamebox-dummy/total.py"
# The smallest MCP server: one tool that doubles a number.
_SERVER = """
import json, sys
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params, method = asked.get("params", {}), asked["method"]
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "dummy", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "double", "description": "Twice a number.", "inputSchema": SCHEMA}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": str(2 * params["arguments"]["number"])}]}
    else:
        result = None
    answer = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def script() -> list[Expected]:
    """Return the steps: a thought, a file in the editor, a command in a shell of its own, a tool of a server."""
    from .expecting import Expected

    return [
        Expected("message", {"content": "The other half."}, _said(r"^Noted \(3 words\)\.$")),
        Expected("create", {"path": FILE}, _said("total.py")),
        Expected("edit", {"start": 1, "end": 0, "text": "def total(entries):\n    return sum(entries)\n"}, _said("2")),
        Expected(
            "edit",
            {"start": 1, "end": 1, "text": "def total(entries:"},
            {"tool_executed": False, "code": "lint_errors"},
        ),
        Expected("open", {"path": FILE, "line": 2}, _said("^Opened .*total.py")),
        Expected("goto", {"line": 1}, _said("window")),
        Expected("scroll_down", {}, _said("")),
        Expected("scroll_up", {}, _said("")),
        Expected("search_dir", {"pattern": "sum(", "dir": "gamebox-dummy"}, _said(r"total.py \(1\)")),
        Expected("search_file", {"pattern": "return"}, _said("2:    return sum")),
        Expected("find_file", {"name": "tot*.py", "dir": "gamebox-dummy"}, _said("total.py")),
        Expected(
            "run",
            {"command": "cd gamebox-dummy; python3 -c 'import total; print(total.total([3, 4]))'"},
            _printed("7\n"),
        ),
        Expected(
            "run", {"command": "ls total.py"}, {"tool_executed": True, "result": {"exit_code": 2}}
        ),  # a shell of its own
        Expected("sums_double", {"number": 21}, _said("^42$")),
        Expected("submit", {"summary": DONE}, {"tool_executed": True}),
    ]


def _said(pattern: str) -> dict[str, Any]:
    return {"tool_executed": True, "result": re.compile(pattern)}


def _printed(output: str) -> dict[str, Any]:
    return {"tool_executed": True, "result": {"exit_code": 0, "output": output}}


def _brain(setting: Setting) -> ExpectingScript:  # noqa: ARG001  a spec's brain is made of a setting
    from .expecting import ExpectingScript

    return ExpectingScript(script(), ends=("submit",))


SPECS = (
    AgentSpec(
        name=NAME,
        description="Calls every action of the editor, mini, the monologue and an MCP server; part of the dummy.",
        goals=(Goal(1, "task", "Carry out the script, and check each answer."),),
        actions=("editor", "mini", "monologue", "mcp"),
        kit_options={"mcp": {"servers": {"sums": {"command": f"exec python3 -c '{_SERVER}'"}}}},
        language="structured",
        memory_options={"limit": 10_000},
        brain=_brain,
        delegable=False,
        listed=False,
        source="built in",
    ),
)
