"""The delegator: study, then code, then verify, by a fixed table instead of a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.goals import Goal
from agent.hub.spec import AgentSpec

if TYPE_CHECKING:
    from agent.hub.setting import Setting

STUDY, CODER, VERIFIER = "study_repo_for_task", "coder", "verifier"
MAX_ROUNDS = 3
_NOTHING_KNOWN = "Nothing was found out about the repository: look around first."
_NOT_SAID = "The verifier says that the task is not done, and not what is missing: check it against the task."


class Pipeline:
    """A brain that decides by the last answer in the memory alone, so that it goes on where a run was broken off.

    The study's summary goes to the coder, whose work the verifier looks at; what is missing goes back to the coder, at most
    ``max_rounds`` times in all. Then, and where the verifier itself did not finish, the task is rejected. A study or a coder that
    did not finish is no end: what they did is verified.
    """

    def __init__(self, task: str, max_rounds: int = MAX_ROUNDS) -> None:
        self._task = task
        self._max_rounds = max_rounds

    def __call__(self, prompt: Any, /) -> Any:
        return self.decide(prompt.metadata["memory"])

    def decide(self, memory: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The invocation that follows on these messages."""
        done = delegations(memory)
        if not done:
            return self._delegate(STUDY, task=self._task)
        agent, envelope = done[-1]
        outputs = _outputs(envelope)
        if agent == STUDY:
            return self._delegate(CODER, task=self._task, summary=_summary(outputs, _NOTHING_KNOWN))
        if agent == CODER:
            return self._delegate(VERIFIER, task=self._task)
        rounds = sum(name == CODER for name, _ in done)
        if envelope.get("tool_executed") is not True:
            return _call("reject", reason=f"The work could not be verified: {envelope.get('error')}"[:2000])
        missing = _summary(outputs, _NOT_SAID)
        if outputs.get("completed") is True:
            said = _summary(outputs, "The verifier says that the task is done.")
            return _call("finish", summary=said, rounds=rounds)
        if rounds >= self._max_rounds:
            return _call("reject", reason=f"Not done after {rounds} rounds: {missing}"[:2000])
        return self._delegate(CODER, task=self._task, summary=missing)

    def _delegate(self, agent: str, **inputs: str) -> dict[str, Any]:
        return _call("delegate", agent=agent, inputs=inputs)


def delegations(memory: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The agents that were delegated to, each with the envelope that answers for it."""
    done = []
    asked: str | None = None
    for message in memory:
        content = message["content"]
        if message["role"] == "assistant" and isinstance(content, Mapping):
            asked = content["args"].get("agent") if content.get("tool") == "delegate" else None
        elif message["role"] == "tool" and asked is not None and isinstance(content, Mapping):
            done.append((asked, content))
            asked = None
    return done


def _call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def _outputs(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    result = envelope.get("result")
    outputs = result.get("outputs") if isinstance(result, Mapping) else None
    return outputs if isinstance(outputs, Mapping) else {}


def _summary(outputs: Mapping[str, Any], otherwise: str) -> str:
    said = outputs.get("summary")
    return said if isinstance(said, str) and said.strip() else otherwise


def _brain(setting: Setting) -> Callable[[Any], Any]:
    return Pipeline(str(setting.inputs["task"]))


SPECS = (
    AgentSpec(
        name="delegator",
        description="Has a task on a repository studied, carried out and verified by one agent each, in rounds until it is done.",
        goals=(Goal(1, "task", "Hand the task on: study, then code, then verify, until the verifier says that it is done."),),
        actions=("delegate", "finish", "reject"),
        kit_options={"delegate": {"agents": [STUDY, CODER, VERIFIER]}},
        language="structured",
        inputs={
            "type": "object",
            "properties": {"task": {"type": "string", "description": "What is to be done."}},
            "required": ["task"],
            "additionalProperties": False,
        },
        outputs={
            "type": "object",
            "properties": {
                "summary": {"type": "string", "description": "What the verifier says."},
                "rounds": {"type": "integer", "description": "How often the coder was asked."},
            },
            "required": ["summary", "rounds"],
            "additionalProperties": False,
        },
        brain=_brain,
        children_need_model=True,
        needs_repo=True,
        source="built in",
    ),
)
