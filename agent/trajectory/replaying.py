"""A run once more: its decisions carried out in another sandbox, without a model, and what is answered there compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agent.actions import Action
from agent.answers import own_words
from agent.carrying_out import carry_out
from agent.envelopes import unknown_tool
from agent.registry import ActionRegistry
from agent.sessions import OwnSessions
from sandbox.environment.base import Environment

from .comparing import Difference, answers_differ
from .names import Names
from .recorded import Recorded, RecordedStep, parts_of

# What makes the environment and the registry of an agent, by its name, around a sandbox.
Equip = Callable[[str, Environment], tuple[Environment, ActionRegistry]]
# What was never carried out; and what is no answer of the sandbox: a person's, who is not asked again, other agents', whose own
# steps are carried out, and that of the run's memory.
_REFUSED = frozenset({"invalid_arguments", "unknown_tool", "unparsable_response", "approval_refused", "approval_pending"})
_OF_OTHERS = frozenset({"ask_user", "message", "delegate", "recall"})


def replay(
    run: Recorded, sandbox: Environment, equip: Equip, names: Names | None = None
) -> Iterator[tuple[RecordedStep, Difference | None]]:
    """Each step with how its answer differs now; None where it does not. Delegated runs are gone through in their places, in
    shell sessions of their own as they were.

    Decisions are carried out as they were made, or as they were approved; what was refused then, and what could not be read, is
    not tried. ``names`` are what is called otherwise now, ids and given ports: they are put into later decisions.
    """
    names = names or Names()
    environment, registry = equip(run.agent, sandbox)
    parts = parts_of(run)
    try:
        for step in run.steps:
            yield from _parts(parts.get(step.number, ()), sandbox, equip, names, run.agent)
            if not _is_tried(step):
                yield step, None
                continue
            envelope = _carried_out(step, environment, registry, names)
            words = own_words(registry.get_action(step.tool), envelope)
            again = RecordedStep(number=step.number, tool=step.tool, args=step.args, envelope=envelope, shown=words)
            yield step, answers_differ(step, again, names)
        yield from _parts(parts.get(None, ()), sandbox, equip, names, run.agent)
    finally:
        for kit in getattr(environment, "kits", ()):
            kit.close()


def _parts(
    parts: Any, sandbox: Environment, equip: Equip, names: Names, above: str
) -> Iterator[tuple[RecordedStep, Difference | None]]:
    for part in parts:
        sessions = OwnSessions(sandbox, part.run or f"{above}-part", above)
        try:
            yield from replay(part, sessions, equip, names)
        finally:
            sessions.end()


def _carried_out(
    step: RecordedStep, environment: Environment, registry: ActionRegistry, names: Names
) -> dict[str, Any]:
    action: Action | None = registry.get_action(step.tool)
    if action is None:
        return unknown_tool(step.tool, [a.name for a in registry.get_actions()])
    args = step.carried if isinstance(step.carried, dict) else step.args
    return carry_out(environment, action, names.arguments(dict(args)))


def _is_tried(step: RecordedStep) -> bool:
    return (
        step.tool is not None
        and step.tool not in _OF_OTHERS
        and isinstance(step.args, dict)
        and step.envelope is not None
        and step.envelope.get("code") not in _REFUSED
    )
