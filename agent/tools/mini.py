"""The kit ``mini``: one action, a command in a shell of its own, and the line of output that ends the run.

Modelled on mini-swe-agent: https://mini-swe-agent.com (agents/default.py, environments/docker.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.core.actions import Action
from agent.core.envelopes import text_of
from agent.core.kits import Kit, KitContext
from agent.core.loop.hooks import Hooks, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from sandbox.envelope import Envelope
from sandbox.operations import RunResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class _Run(Action):
    def show(self, envelope: Mapping[str, Any]) -> str:
        return text_of(envelope, RunResult, self.name)


class MiniKit(Kit):
    """``run(command)``, each in a new shell.

    A command that exits with 0 and prints SUBMIT as its first line ends the run; the rest of its output is the result.
    """

    name = "mini"
    ends_runs = True

    def __init__(self, setting: KitContext) -> None:
        self._environment = setting.environment
        self._actions = (
            _Run(
                "run",
                self._run,
                "Run a shell command in a new shell and wait for it. A command that exits with an error still ran.",
                {
                    "type": "object",
                    "properties": {"command": {"type": "string", "minLength": 1, "description": "Shell text."}},
                    "required": ["command"],
                    "additionalProperties": False,
                },
                metadata={"risk": "low"},  # unless the command itself is risky, as with the operation run
            ),
        )

    def actions(self) -> Sequence[Action]:
        return self._actions

    def hooks(self) -> Sequence[Hooks]:
        return (_Submission(),)

    def _run(self, command: str) -> Envelope[RunResult]:
        return self._environment.run(command, session=None)


class _Submission(Hooks):
    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        envelope = step.envelope or {}
        result = envelope.get("result")
        if step.tool != "run" or envelope.get("tool_executed") is not True or not isinstance(result, Mapping):
            return
        first, _, rest = str(result.get("output", "")).lstrip().partition("\n")
        if result.get("exit_code") == 0 and first.strip() == SUBMIT:
            raise StopRun("The task was submitted.", RunStatus.finished, rest)
