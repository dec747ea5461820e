"""A run once more: its decisions carried out in another sandbox, without a model, and what is answered there compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agent.actions import Action
from agent.carrying_out import carry_out
from agent.envelopes import unknown_tool
from agent.registry import ActionRegistry
from sandbox.environment import Environment

from .comparing import Difference, answers_differ
from .recorded import Recorded, RecordedStep, child_of

# What makes the environment and the registry of an agent, by its name, around a sandbox.
Equip = Callable[[str, Environment], tuple[Environment, ActionRegistry]]


def replay(run: Recorded, sandbox: Environment, equip: Equip) -> Iterator[tuple[RecordedStep, Difference | None]]:
    """Each step with how its answer differs now; None where it does not. Delegated runs are gone through in their places.

    Decisions are carried out as they were made; what was refused then, and what could not be read, is not tried.
    """
    environment, registry = equip(run.agent, sandbox)
    background: dict[str, str] = {}
    for step in run.steps:
        child = child_of(run, step)
        if child is not None:
            yield from replay(child, sandbox, equip)
            continue
        if not _was_handed_over(step):
            yield step, None
            continue
        again = RecordedStep(
            number=step.number,
            tool=step.tool,
            args=step.args,
            envelope=_carried_out(step, environment, registry, background),
        )
        yield step, answers_differ(step, again)


def _carried_out(
    step: RecordedStep, environment: Environment, registry: ActionRegistry, background: dict[str, str]
) -> dict[str, Any]:
    action: Action | None = registry.get_action(step.tool)
    if action is None:
        return unknown_tool(step.tool, [a.name for a in registry.get_actions()])
    args = dict(step.args)
    if args.get("id") in background:  # a command has another id here
        args["id"] = background[args["id"]]
    envelope = carry_out(environment, action, args)
    then, now = (
        step.result.get("id"),
        (envelope.get("result") or {}) if isinstance(envelope.get("result"), dict) else {},
    )
    if isinstance(then, str) and isinstance(now.get("id"), str):
        background[then] = now["id"]
    return envelope


def _was_handed_over(step: RecordedStep) -> bool:
    refused = ("invalid_arguments", "unknown_tool", "unparsable_response", "approval_refused")
    return (
        step.tool is not None
        and isinstance(step.args, dict)
        and step.envelope is not None
        and step.envelope.get("code") not in refused
    )
