"""Delegation: an agent gives a task to another one, which runs on the same loop in the same sandbox, and gets its outcome."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.actions import Action
from agent.core.agent import Agent
from agent.core.budget import Budget, Usage, current_meter
from agent.core.loop.layers import Layer
from agent.core.registry import ActionRegistry
from agent.core.run import AgentRun, Step
from agent.core.status import RunStatus, StopRun
from agent.errors import AgentErrorCode
from agent.memory import Memory
from agent.record import lineage
from agent.record.recorder import current_recorder
from agent.record.resume import execute_as_part, next_part
from sandbox.envelope import Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.wording import count_of

from .own_sessions import OwnSessions

if TYPE_CHECKING:
    from agent.hub import AgentSpec, Setting

MAX_DEPTH = 3
# For an agent that may have no tool to look for itself.
_LOOK = "have it look first at what is already there"
_HINTS = {
    RunStatus.rejected: f"Change the inputs or choose another agent, and {_LOOK}; or finish and say so.",
    RunStatus.max_iterations: f"Give a smaller task, to it or to another agent, and {_LOOK}; or finish and say so.",
    RunStatus.cancelled: "It was stopped from outside, and what it did remains: finish and say so.",
}
_HINT = f"Give the task again, to it or to another agent, and {_LOOK}; or finish and say so."


class Delegation:
    """Runs agents for an agent in ``setting``. Each has its own memory and step count, and what is left of this agent's budget.
    Its usage counts here, too. ``max_depth`` bounds the depth of delegation; no agent delegates to its own kind.
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
        """Whether another agent may run below this one."""
        return self._setting.depth < self._max_depth

    def delegate(self, agent: str, inputs: Mapping[str, Any]) -> Success[Any] | Failure[Any]:
        """Run ``agent`` to its end. Returns a success if it finished, else a failure with the same result: status, outputs,
        summary, usage, run_id. Nothing is started if the inputs do not fit, or no budget is left.

        In a run that was cut off or paused here, the agent continues where it was. If it is paused, so is this one.
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
        """End the agent that is running, and all below it, before their next steps."""
        self._cancelled.set()
        child = self._child
        if child is not None:
            child.cancel()

    def layer(self) -> Layer:
        """Return a layer for this agent's runs: a new run starts without a cancellation, and a run pauses with the agent below."""
        return _Around(self._cancelled, self._take_pause)

    def _take_pause(self) -> StopRun | None:
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
        """Return whether the agent can work in the image of the sandbox."""
        image = getattr(self._setting.environment, "image", None)
        return spec.image is None or image is None or spec.image == image

    def _own_name(self) -> str:
        return self._setting.spec.name if self._setting.spec is not None else "above"


def schema_of(spec: AgentSpec) -> Mapping[str, Any]:
    """Return the JSON schema of the inputs of ``spec``, or of a task alone."""
    if spec.inputs.get("properties"):
        return spec.inputs
    task = {"type": "string", "description": "The task."}
    return {"type": "object", "properties": {"task": task}, "required": [], "additionalProperties": False}


def task_of(spec: AgentSpec, inputs: Mapping[str, Any]) -> str:
    """Return the task of the agent: the one among its inputs, else all of them in words."""
    if isinstance(inputs.get("task"), str) and inputs["task"].strip():
        return str(inputs["task"])
    if not inputs:
        return spec.description
    return f"{spec.description}\n\nYour inputs: {json.dumps(dict(inputs), ensure_ascii=False, sort_keys=True)}"


def summary_of(name: str, run: AgentRun, reason: str) -> str:
    """Return the agent's own summary; without one, how it ended and for which ``reason``."""
    return own_words(run) or f"{name} ended as {run.status.value}: {reason}"[:2000]


def words_of(result: Mapping[str, Any], error: str) -> str:
    """Return the outputs and steps of an agent that did not finish, as text for a model, without what ``error`` says already."""
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
    """Return the summary among the agent's outputs, or ""."""
    said = run.result.get("summary") if isinstance(run.result, dict) else None
    return said if isinstance(said, str) and said.strip() else ""


def _remainder(budget: Budget) -> Budget:
    """Return the budget that is left for an agent below. Raises SandboxError ``delegation_refused`` if a limit is reached."""
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
            f"The budget ({', '.join(gone)}) has nothing left for another agent.",
            "Finish with what you have.",
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


class _PassedOn(Layer):
    """A layer for agents below: cancels them with the agent above, even before their first step."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if self._cancelled.is_set():
            raise StopRun("The agent above was cancelled.", RunStatus.cancelled)


class _Around(Layer):
    def __init__(self, cancelled: threading.Event, take_pause: Callable[[], StopRun | None]) -> None:
        self._cancelled, self._take_pause = cancelled, take_pause

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        if step.number == 1:
            self._cancelled.clear()
            self._take_pause()

    def after_answer(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        pause = self._take_pause()
        if pause is not None:
            raise pause
