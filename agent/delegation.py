"""Delegation: an agent hands a task to another, which runs on the same loop in the same sandbox, and reads how it ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.envelope import Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import count_of

from . import lineage
from .actions import Action
from .budget import Budget, Usage, current_meter
from .errors import AgentErrorCode
from .hooks import Hooks, Step
from .loop import Agent
from .memory import Memory
from .recorded import current_recorder
from .registry import ActionRegistry
from .resuming import execute_as_part, next_part
from .run import AgentRun
from .sessions import OwnSessions
from .status import RunStatus, StopRun

if TYPE_CHECKING:
    from .hub import AgentSpec, Setting

MAX_DEPTH = 3
# For an agent that may have no tool to look for itself.
_LOOK = "have it look first at what is there already"
_HINTS = {
    RunStatus.rejected: f"Change the inputs or choose another agent, and {_LOOK}; or finish and say so.",
    RunStatus.max_iterations: f"Give a smaller task, to it or to another agent, and {_LOOK}; or finish and say so.",
    RunStatus.cancelled: "It was stopped from outside, and what it did stays: finish and say so.",
}
_HINT = f"Give the task again, to it or to another agent, and {_LOOK}; or finish and say so."


class Delegation:
    """What an agent in ``setting`` can hand on. The agents it runs have a memory and a count of steps of their own, and what is
    left of this agent's budget: what they use counts here, too, as it is used. ``depth`` bounds how deep agents may stand
    below the first; no agent delegates to its own kind.
    """

    def __init__(self, setting: Setting, agents: tuple[str, ...] | None = None, max_depth: int = MAX_DEPTH) -> None:
        self._setting = setting
        self._max_depth = max_depth
        self._child: Agent | None = None
        self._cancelled = threading.Event()
        self._pause: StopRun | None = None
        own = setting.spec.name if setting.spec is not None else ""
        names = setting.hub.names() if agents is None else agents
        found = [setting.hub.load(name) for name in names if name != own] if self.is_allowed else []
        self.agents: dict[str, AgentSpec] = {
            spec.name: spec for spec in found if (spec.delegable or agents is not None) and self._fits(spec)
        }

    @property
    def is_allowed(self) -> bool:
        """Whether there may be an agent below this one."""
        return self._setting.depth < self._max_depth

    def delegate(self, agent: str, inputs: Mapping[str, Any]) -> Success[Any] | Failure[Any]:
        """Run ``agent`` to its end. A success only if it finished; else a failure with the same result: status, outputs, summary,
        usage, run_id. Nothing is started for inputs that do not fit, and where nothing of the budget is left.

        Asked again by a run that was cut off or paused here, the agent goes on where it was. One that is paused pauses this one.
        """
        spec = self.agents.get(agent)
        if spec is None:
            return Failure[Any](
                ErrorCode.invalid_arguments,
                f"There is no agent {agent[:200]!r} to delegate to.",
                f"Choose one of: {', '.join(self.agents) or 'none, do it yourself'}.",
            )
        with lineage.within(agent, next_part()) as run:
            sessions = OwnSessions(self._setting.environment, run.run_id, self._own_name())
            try:
                child = self._built(spec, inputs, sessions)
            except SandboxError as error:
                return Failure[Any].of(error, schema=schema_of(spec), next_tool="delegate")
            return self._outcome(spec, self._run(child, spec, inputs, sessions), run.run_id)

    def cancel(self) -> None:
        """End the agent that is at work, and all below it, before their next steps."""
        self._cancelled.set()
        child = self._child
        if child is not None:
            child.cancel()

    def hooks(self) -> Hooks:
        """For the runs of this agent: a new run is not cancelled any more, and one whose agent below is paused is paused."""
        return _Around(self._cancelled, self._taken_pause)

    def _taken_pause(self) -> StopRun | None:
        pause, self._pause = self._pause, None
        return pause

    def _built(self, spec: AgentSpec, inputs: Mapping[str, Any], sessions: OwnSessions) -> Agent:
        setting = self._setting
        probe = Action(spec.name, lambda: None, spec.description, schema_of(spec))
        fits, message = ActionRegistry().validate_args(probe, inputs)
        if not fits:
            raise SandboxError(
                ErrorCode.invalid_arguments,
                f"The inputs of the agent {spec.name!r} do not fit: {message}",
                "Give it inputs that fit its schema.",
            )
        return setting.hub.build(
            spec.name,
            replace(
                setting,
                environment=sessions,
                budget=_remainder(setting.budget),
                inputs=dict(inputs) if spec.inputs.get("properties") else {},
                hooks=(_PassedOn(self._cancelled),),
                depth=setting.depth + 1,
                new_memory=None,
                spec=None,
            ),
        )

    def _run(self, child: Agent, spec: AgentSpec, inputs: Mapping[str, Any], sessions: OwnSessions) -> AgentRun:
        self._child, above = child, current_recorder()
        steps: tuple[Step, ...] = ()
        goes_on = above is not None
        try:
            run = execute_as_part(child, task_of(spec, inputs), name=spec.name, run=None if above is None else sessions.prefix)
            steps, goes_on = run.steps, above is not None and above.is_stopping
        except Exception:
            goes_on = above is not None and above.is_stopping
            raise
        finally:
            self._child = None
            for kit in getattr(child.environment, "kits", ()):
                kit.close()
            if not goes_on:  # else it is taken up in them
                for step in steps:
                    sessions.used(child.actions.get_action(step.tool), step.args)
                sessions.end()
        if run.status is RunStatus.paused:
            self._pause = StopRun(f"{spec.name} is paused: {run.reason}", RunStatus.paused, run.result)
        return run

    def _outcome(self, spec: AgentSpec, run: AgentRun, run_id: str) -> Success[Any] | Failure[Any]:
        reason = self._setting.environment.hidden.mask.text(run.reason)  # before it is cut
        result = {
            "status": run.status.value,
            "outputs": run.result if isinstance(run.result, dict) else {},
            "summary": summary_of(spec.name, run, reason),
            "usage": {**_used(run.usage), "steps": run.iterations, "seconds": round(run.seconds, 3)},
            "run_id": run_id,
        }
        if run.ok:
            return Success(result)
        lost = run.status is RunStatus.environment_lost
        return Failure[Any](
            ErrorCode.sandbox_unavailable if lost else AgentErrorCode.delegate_not_finished,
            f"The agent {spec.name} did not finish ({run.status.value}): {reason}"[:2000],
            _hint(run, lost),
            effects="unknown" if run.iterations else "none",
            result=result if own_words(run) else {**result, "summary": ""},  # the message says how it ended
        )

    def _fits(self, spec: AgentSpec) -> bool:
        """Whether the sandbox is one that the agent can work in."""
        image = getattr(self._setting.environment, "image", None)
        return spec.image is None or image is None or spec.image == image

    def _own_name(self) -> str:
        return self._setting.spec.name if self._setting.spec is not None else "above"


def schema_of(spec: AgentSpec) -> Mapping[str, Any]:
    """The JSON schema of what ``spec`` is given: its inputs, or a task alone."""
    if spec.inputs.get("properties"):
        return spec.inputs
    task = {"type": "string", "description": "What it is to do."}
    return {"type": "object", "properties": {"task": task}, "required": [], "additionalProperties": False}


def task_of(spec: AgentSpec, inputs: Mapping[str, Any]) -> str:
    """What the agent is told as its user's words: the task of its inputs, else all of them."""
    if isinstance(inputs.get("task"), str) and inputs["task"].strip():
        return str(inputs["task"])
    if not inputs:
        return spec.description
    return f"{spec.description}\n\nYour inputs: {json.dumps(dict(inputs), ensure_ascii=False, sort_keys=True)}"


def summary_of(name: str, run: AgentRun, reason: str) -> str:
    """What the agent says it did; where it says nothing, how it ended, for that ``reason``."""
    return own_words(run) or f"{name} ended as {run.status.value}: {reason}"[:2000]


def words_of(result: Mapping[str, Any], error: str) -> str:
    """What an agent that did not finish handed in, and its steps, as text for a model; nothing that stands in ``error``."""
    outputs, usage = result.get("outputs"), result.get("usage")  # in a log of somebody else they may be anything
    given = {"summary": result.get("summary"), **(outputs if isinstance(outputs, Mapping) else {})}
    texts = {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in given.items() if v}
    lines = [f"Its {name}: {text}" for name, text in texts.items() if text not in error]
    steps = usage.get("steps") if isinstance(usage, Mapping) else None
    return "\n".join([*lines, *([f"[it took {count_of(steps, 'step')}]"] if isinstance(steps, int) else [])])


def _hint(run: AgentRun, lost: bool) -> str:
    own = getattr(run.error, "hint", "")
    if own and run.iterations and not lost:
        return f"{own} If you give the task again, {_LOOK}."
    return own or _HINTS.get(run.status, _HINT)


def own_words(run: AgentRun) -> str:
    """The summary that the agent handed in; "" where it handed in none."""
    said = run.result.get("summary") if isinstance(run.result, dict) else None
    return said if isinstance(said, str) and said.strip() else ""


def _remainder(budget: Budget) -> Budget:
    """What is left for an agent below. Raises SandboxError ``delegation_refused`` where a limit is reached."""
    meter = current_meter()
    if meter is None:
        return budget
    limits, used = meter.budget, meter.usage
    left: dict[str, float | None] = {
        "max_seconds": meter.seconds_left(),
        "max_tokens": None if limits.max_tokens is None else limits.max_tokens - used.total_tokens,
        "max_cost_usd": None if limits.max_cost_usd is None else limits.max_cost_usd - used.cost_usd,
    }
    gone = [name for name, value in left.items() if value is not None and value <= 0]
    if gone:
        raise SandboxError(
            AgentErrorCode.delegation_refused,
            f"Nothing is left of the budget ({', '.join(gone)}) for another agent.",
            "Finish with what there is.",
        )
    return replace(budget, **left)  # type: ignore[arg-type]  # max_tokens is whole: a whole number less a whole number


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "failed_calls": usage.failed_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.unpriced_calls else round(usage.cost_usd, 6),
    }


class _PassedOn(Hooks):
    """In the runs of agents below: cancelled with the one above, also when that came before their first step."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if self._cancelled.is_set():
            raise StopRun("The agent above was cancelled.", RunStatus.cancelled)


class _Around(Hooks):
    def __init__(self, cancelled: threading.Event, paused: Callable[[], StopRun | None]) -> None:
        self._cancelled, self._paused = cancelled, paused

    def on_step_start(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.number == 1:
            self._cancelled.clear()
            self._paused()

    def on_result(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        pause = self._paused()
        if pause is not None:
            raise pause
