"""A part of the dummy: an agent of the late contract that takes each action of that contract and checks its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.core.goals import Goal
from agent.hub.spec import AgentSpec

if TYPE_CHECKING:
    from agent.contracts.state import State
    from agent.hub.hub import Setting

NAME = "dummy_old"
DONE = "All of the old actions were taken."
FILE = "gamebox-dummy/old.txt"
# Two pages, one of which leads to the other, on a port of the system's choice.
SITE = (
    "mkdir -p gamebox-dummy/site && cd gamebox-dummy/site && echo '<p>first</p><a href=two.html>on</a>' > index.html && "
    "echo '<p>second</p>' > two.html && exec python3 -u -m http.server --bind 127.0.0.1 0"
)
# Action, its arguments, the type of the observation, and a pattern for its content. {site} is where the pages are.
Taken = tuple[str, Mapping[str, Any], str, str]
STEPS: Sequence[Taken] = (
    ("run", {"command": "echo of old"}, "run", "^of old$"),
    ("write", {"path": FILE, "content": "one\ntwo\n"}, "write", ""),
    ("write", {"path": FILE, "content": "zero\n", "start": 0, "end": 1}, "write", ""),  # lines in the place of others
    ("read", {"path": FILE}, "read", "^zero\ntwo$"),
    ("run_ipython", {"code": "print(6 * 7)"}, "run_ipython", "^42$"),
    ("run", {"command": SITE, "background": True}, "run", "with id 0"),
    ("null", {}, "null", ""),  # waits for what the background says
    ("browse", {"url": "{site}"}, "browse", "first"),
    ("browse_interactive", {"browser_actions": 'click("1")'}, "browse", "second"),
    ("browse_interactive", {"browser_actions": "go_back()\nnew_tab()\ntab_focus(0)"}, "browse", "first"),
    ("browse_interactive", {"browser_actions": 'fill("1", "x")'}, "browse", "This browser cannot do 'fill'"),
    ("kill", {"command_id": 0}, "run", "was killed"),
    ("browse", {"url": "{site}"}, "browse", "could not be reached"),
    ("recall", {"query": "old"}, "recall", ""),
    ("message", {"content": "Nothing is waited for."}, "null", ""),
    ("add_task", {"parent": "", "goal": "see that plans work"}, "null", ""),
    ("modify_task", {"task_id": "0", "state": "completed"}, "null", ""),
    ("summarize", {"summary": "All went well."}, "null", ""),
    ("change_agent_state", {"agent_state": "running"}, "null", ""),
)
_WAIT = next(number for number, (name, *_) in enumerate(STEPS) if name == "null")
MOST_WAITS = 60


class OldDummy:
    """Take STEPS in order, then end as the input ``end`` says. Raises ValueError for an unexpected result."""

    def __init__(self) -> None:
        self._taken = 0
        self._site = ""
        self._waits = 0

    def step(self, state: State) -> dict[str, Any]:
        """Return the next action, if the last one had the expected result."""
        if self._taken:
            name, _, kind, pattern = STEPS[self._taken - 1]
            found = state.updated_info[0][1]
            if found.type != kind or not re.search(pattern, found.content):
                raise ValueError(f"{name} was answered with {found.type}: {found.content[:300]}")
        for said in state.background_commands_obs:
            if port := re.search(r" port (\d+)", said.content):
                self._site = f"http://127.0.0.1:{port[1]}/"
        if self._taken == _WAIT + 1 and not self._site and self._waits < MOST_WAITS:
            self._waits += 1  # the server takes its time on a busy machine
            return {"action": "null", "args": {}}
        self._taken += 1
        if self._taken <= len(STEPS):
            name, args, _, _ = STEPS[self._taken - 1]
            return {
                "action": name,
                "args": {key: self._site if value == "{site}" else value for key, value in args.items()},
            }
        return {"action": str(state.inputs["end"]), "args": {"outputs": {"reason": DONE}}}

    def search_memory(self, query: str) -> list[str]:
        """Return what the agent remembers of ``query``."""
        return [f"{query}: {self._taken} actions were taken"]


def _brain(setting: Setting) -> Callable[[Any], Any]:
    from agent.contracts.kit import kit_of
    from agent.contracts.late import LateKit

    return kit_of(setting, LateKit).__call__


SPECS = (
    AgentSpec(
        name=NAME,
        description="Calls every action of the late contract; part of the dummy.",
        goals=(Goal(1, "task", "Call every action, and check each answer."),),
        actions=("late",),
        kit_options={"late": {"make": OldDummy}},
        language="structured",
        inputs={
            "type": "object",
            "properties": {
                "end": {"type": "string", "enum": ["finish", "reject"], "description": "How the run is to end."}
            },
            "required": ["end"],
            "additionalProperties": False,
        },
        brain=_brain,
        delegable=False,
        listed=False,
        source="built in",
    ),
)
