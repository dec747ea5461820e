"""The actions of the old contracts that are no operation of a sandbox: they belong to the run, or to the agent itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.actions import Action
from sandbox.errors import ToolError

if TYPE_CHECKING:
    from .kit import OldAgentKit

_TEXT, _WHOLE, _OBJECT, _TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "object"}, {"type": "boolean"}
NOBODY = "Nobody answers during this run. Decide for yourself, or finish."
MOST_LINES_READ = 1_000_000


def own_actions(kit: OldAgentKit) -> list[Action]:
    """The actions, working on the state of ``kit``."""

    def add_task(parent: str, goal: str, subtasks: list[Any] | None = None) -> dict[str, Any]:
        return kit.root_task.add_subtask(parent, goal, subtasks).to_dict()

    def modify_task(task_id: str, state: str) -> None:
        kit.root_task.set_subtask_state(task_id, state)

    return [
        _action("finish", lambda outputs=None, **more: {**(outputs or {}), **more}, "End the run.", outputs=_OBJECT, terminal=True),
        _action("reject", lambda outputs=None: outputs or {}, "Give the task back.", outputs=_OBJECT),
        _action("recall", kit.search, "Ask the agent's own memory.", ["query"], query=_TEXT),
        _action("message", kit.said, "Say something to the user.", ["content"], content=_TEXT, wait_for_response=_TRUTH),
        _action("summarize", lambda summary: summary, "Keep a summary in the history.", ["summary"], summary=_TEXT),
        _action("wait", lambda: kit.background.wait(1.0), "Wait for output of commands in the background."),
        _action(
            "change_agent_state", lambda agent_state: agent_state, "Ask for a state.", ["agent_state"], agent_state=_TEXT
        ),
        _action(
            "add_task", add_task, "Add a task to the plan.", ["parent", "goal"],
            parent=_TEXT, goal=_TEXT, subtasks={"type": "array"},
        ),
        _action(
            "modify_task", modify_task, "Set the state of a task.",
            ["task_id", "state"], task_id=_TEXT, state=_TEXT,
        ),
        _action(
            "write_lines", lambda **args: write_lines(kit, **args), "Put lines in the place of others.",
            ["path", "content", "start", "end"], path=_TEXT, content=_TEXT, start=_WHOLE, end=_WHOLE,
        ),
        _action("run_ipython", kit.python.run, "Run Python code in a kernel whose variables stay.", ["code"], code=_TEXT),
        _action("browse_interactive", kit.browser.do, "Drive a browser of text.", ["browser_actions"], browser_actions=_TEXT),
    ]  # fmt: skip


def _action(
    name: str, function: Callable[..., Any], description: str, required: Sequence[str] = (), *,
    terminal: bool = False, **properties: Mapping[str, Any],
) -> Action:  # fmt: skip
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return Action(name, function, description, schema, terminal)


def write_lines(kit: OldAgentKit, path: str, content: str, start: int, end: int) -> Any:
    """Replace the lines from ``start`` (0-based) up to ``end`` of a file; -1 is its end. The envelope of the write."""
    before = kit.environment.execute("read", {"path": path, "start_line": 1, "end_line": MOST_LINES_READ})
    if not before.ok:
        return before
    if before.result.truncated or before.result.binary or before.result.encoding_errors:
        raise ToolError(f"{path} cannot be changed by lines: it is too long, or no text.", "Change it with a command.")
    lines = before.result.content.splitlines(keepends=True)
    if not 0 <= start <= len(lines) or (end != -1 and not start <= end <= len(lines)):
        raise ToolError(
            f"There are no lines {start} to {end} in {path}: it has {len(lines)}.", "Count from 0; -1 is the end."
        )
    after = lines[len(lines) if end == -1 else end :]
    head = lines[:start]
    if head and not head[-1].endswith("\n"):
        head[-1] += "\n"
    new = content if not content or not after or content.endswith("\n") else f"{content}\n"
    return kit.environment.execute("write", {"path": path, "content": "".join([*head, new, *after])})

