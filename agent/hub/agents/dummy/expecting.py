"""A brain that follows a script, and knows what each answer must be."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from agent.core.loop.hooks import Hooks, Step
from agent.core.status import RunStatus, StopRun
from agent.memory import Memory
from agent.record.volatile import VOLATILE_ANYWHERE, mask_loosely
from sandbox.frozen import dataclass

Answers = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Expected:
    """One step: a call, and what its envelope must contain.

    ``args`` may be a function of the answers so far, oldest first. ``answer`` is a part of the envelope: each of its
    keys must be there with that value, a list must have these items, and a pattern must match within the text.
    """

    tool: str
    args: Mapping[str, Any] | Callable[[Answers], Mapping[str, Any]] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=lambda: {"tool_executed": True})


class ExpectingScript(Hooks):
    """Follow ``steps``, and end the run as ``unexpected`` if an answer is not as expected.

    A run finishes only with the last step: if one of ``ends``, the names of terminal actions, would end it earlier,
    that is ``unexpected``, too. The position in the script is read from the memory, so the language must be
    "structured" and the memory complete. Ids, times and ports are masked in the differences that it shows.
    """

    def __init__(self, steps: Sequence[Expected], ends: Collection[str] = ("finish", "reject")) -> None:
        self._steps = tuple(steps)
        self._ends = frozenset(ends)

    def __call__(self, prompt: Any, /) -> dict[str, Any]:
        answers = answers_in(prompt.metadata["memory"])
        if len(answers) >= len(self._steps):
            raise StopRun(f"All {len(self._steps)} steps are done, but the run goes on.", RunStatus.unexpected)
        step = self._steps[len(answers)]
        try:
            args = step.args(answers) if callable(step.args) else step.args
        except (KeyError, IndexError, TypeError) as error:
            reason = f"Step {len(answers) + 1} ({step.tool}) needs something that the earlier answers do not contain: {error!r}."
            raise StopRun(reason, RunStatus.unexpected) from None
        return {"tool": step.tool, "args": dict(args)}

    def on_result(self, step: Step, memory: Memory) -> None:
        """Check the answer. Raises StopRun ``unexpected``."""
        number = len(answers_in(memory.get_memories()))  # not the step's: a run that was taken up again counts anew
        expected = self._steps[number - 1] if number <= len(self._steps) else Expected("nothing")
        envelope = step.envelope or {}
        if step.tool != expected.tool or differences(expected.answer, envelope):
            shown = difference(expected, step.tool, envelope)
            reason = f"Step {number} of {len(self._steps)} ({expected.tool}) had a different answer:\n{shown}"
            raise StopRun(reason, RunStatus.unexpected, {"step": number, "diff": shown})
        left = len(self._steps) - number
        if left and step.tool in self._ends and envelope.get("tool_executed") is True:
            raise StopRun(
                f"{step.tool} would have finished the run before its script: {left} steps left.", RunStatus.unexpected
            )

    @property
    def steps(self) -> tuple[Expected, ...]:
        """The script."""
        return self._steps


def answers_in(memory: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the envelopes in a memory."""
    return [message["content"] for message in memory if message["role"] == "tool"]


def differences(expected: Any, found: Any) -> bool:
    """Return whether ``found`` lacks any of what is expected."""
    if isinstance(expected, re.Pattern):
        return not (isinstance(found, str) and expected.search(found))
    if isinstance(expected, Mapping):
        return not isinstance(found, Mapping) or any(
            key not in found or differences(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return (
            not isinstance(found, list | tuple)
            or len(expected) != len(found)
            or any(differences(e, f) for e, f in zip(expected, found, strict=True))
        )
    return bool(expected != found or isinstance(expected, bool) is not isinstance(found, bool))


def difference(expected: Expected, tool: str | None, envelope: Mapping[str, Any]) -> str:
    """Return the difference between expected and found as a diff; a success is shown without unexpected keys."""
    wanted = {"tool": expected.tool, **_wanted(expected.answer, envelope)}
    whole = envelope.get("tool_executed") is not True
    came = {"tool": tool, **(dict(envelope) if whole else _asked(expected.answer, envelope))}
    before, after = _lines(masked(wanted)), _lines(masked(came))
    return "\n".join(difflib.unified_diff(before, after, "expected", "answer", lineterm="", n=20))


def masked(value: Any, name: str = "") -> Any:
    """Return ``value`` with a mask in place of what varies between runs."""
    if name in VOLATILE_ANYWHERE and value is not None:
        return "<masked>"
    if isinstance(value, Mapping):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    return mask_loosely(value) if isinstance(value, str) else value


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=repr).split("\n")


def _wanted(expected: Any, found: Any) -> Any:
    """Return what is expected, with the matching text in place of a pattern."""
    if isinstance(expected, re.Pattern):
        return f"/{expected.pattern}/" if differences(expected, found) else found
    if isinstance(expected, Mapping):
        inside = found if isinstance(found, Mapping) else {}
        return {key: _wanted(value, inside.get(key)) for key, value in expected.items()}
    if isinstance(expected, list | tuple):
        items = list(found) if isinstance(found, list | tuple) else []
        return [_wanted(value, items[n] if n < len(items) else None) for n, value in enumerate(expected)]
    return expected


def _asked(expected: Any, found: Any) -> Any:
    """Return the parts of ``found`` that the expectation mentions."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return {key: _asked(value, found[key]) for key, value in expected.items() if key in found}
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return [_asked(expected[n], value) if n < len(expected) else value for n, value in enumerate(found)]
    return found
