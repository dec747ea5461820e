"""A brain that follows a script, and says what each answer must be."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.hooks import Hooks, Step
from agent.memory import Memory
from agent.status import RunStatus, StopRun

Answers = Sequence[Mapping[str, Any]]
# What is another each time, by name of the field, and in texts.
_FIELDS = frozenset({
    "id", "pid", "run_id", "timestamp", "duration_ms", "cpu_seconds", "seconds", "waited_seconds", "max_rss_bytes", "spill_path",
})  # fmt: skip
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.,:+Z-]*")
_ID = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=port )\d+")


@dataclass(frozen=True, slots=True)
class Expected:
    """One step: what is done, and what its envelope must hold.

    ``args`` may be a function of the answers so far, the oldest first. ``answer`` is a part of the envelope: each of its keys must
    be there with that value; a list must have these items, a pattern must be found in the text.
    """

    tool: str
    args: Mapping[str, Any] | Callable[[Answers], Mapping[str, Any]] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=lambda: {"tool_executed": True})


class ExpectingScript(Hooks):
    """Does one of ``steps`` after the other, and ends the run as ``unexpected`` where an answer is not what it must be.

    A run finishes only with the last step: one that one of ``ends``, the names of terminal actions, would end before that is
    ``unexpected``, too. Where it is, it reads from the memory, so the language must be "structured" and the memory whole. Ids,
    times and ports are masked in the differences it shows.
    """

    def __init__(self, steps: Sequence[Expected], ends: Collection[str] = ("finish", "reject")) -> None:
        self._steps = tuple(steps)
        self._ends = frozenset(ends)

    def __call__(self, prompt: Any, /) -> dict[str, Any]:
        answers = answers_in(prompt.metadata["memory"])
        if len(answers) >= len(self._steps):
            raise StopRun(f"All {len(self._steps)} steps are done, and the run goes on.", RunStatus.unexpected)
        step = self._steps[len(answers)]
        try:
            args = step.args(answers) if callable(step.args) else step.args
        except (KeyError, IndexError, TypeError) as error:
            reason = f"Step {len(answers) + 1} ({step.tool}) needs what the answers before do not have: {error!r}."
            raise StopRun(reason, RunStatus.unexpected) from None
        return {"tool": step.tool, "args": dict(args)}

    def on_result(self, step: Step, memory: Memory) -> None:
        """See the base class. Raises StopRun ``unexpected``."""
        number = len(answers_in(memory.get_memories()))  # not the step's: a run that was taken up again counts anew
        expected = self._steps[number - 1] if number <= len(self._steps) else Expected("nothing")
        envelope = step.envelope or {}
        if step.tool != expected.tool or differences(expected.answer, envelope):
            shown = difference(expected, step.tool, envelope)
            reason = f"Step {number} of {len(self._steps)} ({expected.tool}) had another answer:\n{shown}"
            raise StopRun(reason, RunStatus.unexpected, {"step": number, "diff": shown})
        left = len(self._steps) - number
        if left and step.tool in self._ends and envelope.get("tool_executed") is True:
            raise StopRun(f"{step.tool} would have finished the run before its script: {left} steps left.", RunStatus.unexpected)

    @property
    def steps(self) -> tuple[Expected, ...]:
        """The script."""
        return self._steps


def answers_in(memory: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The envelopes in a memory."""
    return [message["content"] for message in memory if message["role"] == "tool"]


def differences(expected: Any, found: Any) -> bool:
    """Whether ``found`` lacks any of what is expected."""
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
    """What was expected against what came, as a diff: what nobody asked about is left out of a success."""
    wanted = {"tool": expected.tool, **_wanted(expected.answer, envelope)}
    whole = envelope.get("tool_executed") is not True
    came = {"tool": tool, **(dict(envelope) if whole else _asked(expected.answer, envelope))}
    before, after = _lines(masked(wanted)), _lines(masked(came))
    return "\n".join(difflib.unified_diff(before, after, "expected", "answer", lineterm="", n=20))


def masked(value: Any, name: str = "") -> Any:
    """``value`` without what is another each time."""
    if name in _FIELDS and value is not None:
        return "<masked>"
    if isinstance(value, Mapping):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    if isinstance(value, str):
        return _PORT.sub("<port>", _ID.sub("<id>", _TIME.sub("<time>", value)))
    return value


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=repr).split("\n")


def _wanted(expected: Any, found: Any) -> Any:
    """What is expected, with the text where a pattern was found in it."""
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
    """Of ``found`` what the expectation speaks of."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return {key: _asked(value, found[key]) for key, value in expected.items() if key in found}
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return [_asked(expected[n], value) if n < len(expected) else value for n, value in enumerate(found)]
    return found
