"""The delegator: study, code, verify. A fixed table takes the place of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.core.goals import Goal
from agent.hub.spec import AgentSpec

if TYPE_CHECKING:
    from agent.hub.hub import Setting

STUDY, CODER, VERIFIER = "study_repo_for_task", "coder", "verifier"
MAX_ROUNDS = 3
_NOTHING_KNOWN = "Nothing was found out about the repository: look around first."
_NOT_SAID = "The verifier says that the task is not done, but not what is missing: compare the work with the task."


class Pipeline:
    """A brain that decides by the last answer in the memory alone, and so continues where a run was interrupted.

    The coder gets the summary of the study, and the verifier checks the coder's work. What is missing goes back to the
    coder, which is asked at most ``max_rounds`` times. After that, or if the verifier itself did not finish, the task
    is rejected. If the study or the coder did not finish, what they did is verified all the same.
    """

    def __init__(self, task: str, max_rounds: int = MAX_ROUNDS) -> None:
        self._task = task
        self._max_rounds = max_rounds

    def __call__(self, prompt: Any, /) -> Any:
        return self.decide(prompt.metadata["memory"])

    def decide(self, memory: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the call that follows these messages."""
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
            summary = _summary(outputs, "The verifier says that the task is done.")
            return _call("finish", summary=summary, rounds=rounds)
        if rounds >= self._max_rounds:
            return _call("reject", reason=f"Not done after {rounds} rounds: {missing}"[:2000])
        return self._delegate(CODER, task=self._task, summary=missing)

    def _delegate(self, agent: str, **inputs: str) -> dict[str, Any]:
        return _call("delegate", agent=agent, inputs=inputs)


def delegations(memory: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the agents that were delegated to, each with its envelope."""
    done = []
    agent: str | None = None
    for message in memory:
        content = message["content"]
        if message["role"] == "assistant" and isinstance(content, Mapping):
            agent = content["args"].get("agent") if content.get("tool") == "delegate" else None
        elif message["role"] == "tool" and agent is not None and isinstance(content, Mapping):
            done.append((agent, content))
            agent = None
    return done


def _call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def _outputs(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    result = envelope.get("result")
    outputs = result.get("outputs") if isinstance(result, Mapping) else None
    return outputs if isinstance(outputs, Mapping) else {}


def _summary(outputs: Mapping[str, Any], otherwise: str) -> str:
    summary = outputs.get("summary")
    return summary if isinstance(summary, str) and summary.strip() else otherwise


def _brain(setting: Setting) -> Callable[[Any], Any]:
    return Pipeline(str(setting.inputs["task"]))


SPECS = (
    AgentSpec(
        name="delegator",
        description="Has other agents study, carry out and verify a task on a repository, in rounds until it is done.",
        goals=(
            Goal(
                1, "task", "Delegate the task: study, then code, then verify, until the verifier says that it is done."
            ),
        ),
        actions=("delegate", "finish", "reject"),
        kit_options={"delegate": {"agents": [STUDY, CODER, VERIFIER]}},
        language="structured",
        inputs={
            "type": "object",
            "properties": {"task": {"type": "string", "description": "The task."}},
            "required": ["task"],
            "additionalProperties": False,
        },
        outputs={
            "type": "object",
            "properties": {
                "summary": {"type": "string", "description": "What the verifier says."},
                "rounds": {"type": "integer", "description": "How many times the coder ran."},
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
