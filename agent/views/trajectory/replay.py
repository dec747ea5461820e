"""Replay a run: carry out its decisions in another sandbox, without a model, and compare the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from agent.core.actions import Action
from agent.core.envelopes import unknown_tool
from agent.core.loop.calls import carry_out
from agent.core.registry import ActionRegistry
from agent.layers.own_sessions import OwnSessions
from agent.record.answers import own_words
from agent.record.store.run_record import CallRecord, RunRecord, StepRecord, call_of
from agent.record.subruns import subruns_by_step
from sandbox.environment.base import Environment

from .comparison import Difference, answers_differ
from .renames import Renames

# Returns the environment and the registry of the agent of a name, around a sandbox.
Equip = Callable[[str, Environment], tuple[Environment, ActionRegistry]]
# Calls that were never carried out; and those that the sandbox does not answer: a person, who is not asked again, other agents,
# whose own steps are replayed, and the memory of the run.
_REFUSED = frozenset(
    {"invalid_arguments", "unknown_tool", "unparsable_response", "approval_refused", "approval_pending"}
)
_OF_OTHERS = frozenset({"ask_user", "message", "delegate", "recall"})


def replay(
    run: RunRecord, sandbox: Environment, equip: Equip, renames: Renames | None = None
) -> Iterator[tuple[StepRecord, Difference | None]]:
    """Yield each call's step with how its answer differs now, None if it does not. Subruns are replayed in their places, in shell
    sessions of their own.

    Decisions are carried out as they were made, or as they were approved. What was refused, or could not be parsed, is skipped.
    ``renames`` are put into later decisions.
    """
    renames = renames or Renames()
    environment, registry = equip(run.agent, sandbox)
    parts = subruns_by_step(run)
    try:
        for step in run.steps:
            yield from _parts(parts.get(step.number, ()), sandbox, equip, renames, run.agent)
            for call in step.calls:
                yield step, _difference(step.number, call, environment, registry, renames)
        yield from _parts(parts.get(None, ()), sandbox, equip, renames, run.agent)
    finally:
        for kit in getattr(environment, "kits", ()):
            kit.close()


def _parts(
    parts: Any, sandbox: Environment, equip: Equip, renames: Renames, above: str
) -> Iterator[tuple[StepRecord, Difference | None]]:
    for part in parts:
        sessions = OwnSessions(sandbox, part.run or f"{above}-part", above)
        try:
            yield from replay(part, sessions, equip, renames)
        finally:
            sessions.end()


def _difference(
    number: int, call: CallRecord, environment: Environment, registry: ActionRegistry, renames: Renames
) -> Difference | None:
    if not _is_tried(call):
        return None
    envelope = _carried_out(call, environment, registry, renames)
    words = own_words(registry.get_action(call.tool), envelope)
    again = call_of(number, 0, "", call.tool, call.args, envelope, None, "", words)
    found = answers_differ(call, again, renames)
    return None if found is None else replace(found, step_a=number, step_b=number)


def _carried_out(
    step: CallRecord, environment: Environment, registry: ActionRegistry, renames: Renames
) -> dict[str, Any]:
    action: Action | None = registry.get_action(step.tool)
    if action is None:
        return unknown_tool(step.tool, [a.name for a in registry.get_actions()])
    args = step.approved_args if isinstance(step.approved_args, dict) else step.args
    return carry_out(environment, action, renames.rename_args(dict(args)))


def _is_tried(step: CallRecord) -> bool:
    return (
        step.tool is not None
        and step.tool not in _OF_OTHERS
        and isinstance(step.args, dict)
        and step.envelope is not None
        and step.envelope.get("code") not in _REFUSED
    )
