"""Two recordings side by side: where the decisions differ, and where the same decision was answered differently."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.envelope import jsonable

from .recorded import Recorded, RecordedStep
from .wording import answer_text

# What is never the same twice; the folder of a command is a path of the host where there is no container.
_PASSING = frozenset({
    "timestamp", "duration_ms", "cpu_seconds", "max_rss_bytes", "rss_bytes", "id", "pid", "request_id", "spill_path", "started_at",
    "cwd",
})  # fmt: skip
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|seconds?|minutes?)\b"), "DURATION"),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b"), "ADDRESS"),
    (re.compile(r"\b(?i:pid|process)[ =:]+\d+\b"), "PROCESS"),
    (re.compile(r"\bc\d{1,6}\b"), "ID"),
    (re.compile(r"(?<=/tmp/)[\w.-]*\w{6,}"), "TEMPORARY"),
)
SHOWN_LINES = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. ``kind`` is "answer" (the same decision, another answer), "only_a", "only_b" or "end"; ``step_a`` and
    ``step_b`` are numbers of steps, None where there is none; ``lines`` say what differs, as in a diff.
    """

    kind: str
    step_a: int | None
    step_b: int | None
    what: str
    lines: tuple[str, ...] = ()


def differences(a: Recorded, b: Recorded) -> list[Difference]:
    """Where two runs differ, in their order; ids, times and the like do not count. Delegated runs are looked at as well."""
    found = list(_of_steps(a.steps, b.steps))
    for one, other in zip(a.children, b.children, strict=False):
        found += differences(one, other)
    if (a.status, masked(a.result)) != (b.status, masked(b.result)):
        ends = [f"{run.status}: {json.dumps(masked(run.result), ensure_ascii=False)}" for run in (a, b)]
        found.append(Difference("end", None, None, "the end", _lines(*ends)))
    return found


def _of_steps(a: Any, b: Any) -> Iterator[Difference]:
    keys_a, keys_b = [_decision(s) for s in a], [_decision(s) for s in b]
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if kind == "equal":
            for one, other in zip(a[a0:a1], b[b0:b1], strict=True):
                difference = answers_differ(one, other)
                if difference is not None:
                    yield difference
            continue
        yield from (Difference("only_a", s.number, None, _named(s)) for s in a[a0:a1])
        yield from (Difference("only_b", None, s.number, _named(s)) for s in b[b0:b1])


def answers_differ(a: RecordedStep, b: RecordedStep) -> Difference | None:
    """What differs in the answers to two decisions that are the same; None where nothing does."""
    if masked(a.envelope) == masked(b.envelope):
        return None
    lines = _lines(masked(answer_text(a)), masked(answer_text(b)))
    if not lines:  # in what is not shown to a model
        lines = _lines(*(json.dumps(masked(s.envelope), ensure_ascii=False, indent=1, sort_keys=True) for s in (a, b)))
    return Difference("answer", a.number, b.number, _named(a), lines)


def masked(value: Any) -> Any:
    """``value`` as data, without what is never the same twice."""
    if isinstance(value, str):
        for pattern, name in _MASKS:
            value = pattern.sub(name, value)
        return value
    if isinstance(value, Mapping):
        return {str(k): masked(v) for k, v in value.items() if k not in _PASSING}
    return [masked(v) for v in value] if isinstance(value, list | tuple) else value


def _decision(step: RecordedStep) -> str:
    return f"{step.tool} {json.dumps(masked(jsonable(step.args)), ensure_ascii=False, sort_keys=True)}"


def _named(step: RecordedStep) -> str:
    text = _decision(step)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _lines(a: str, b: str) -> tuple[str, ...]:
    """The lines that differ. Very long texts are compared by their first and last lines alone: matching takes their square."""
    compared = difflib.unified_diff(_ends(a.splitlines()), _ends(b.splitlines()), lineterm="", n=1)
    lines = [line for line in compared if not line.startswith(("---", "+++"))]
    more = len(lines) - SHOWN_LINES
    return tuple(lines) if more <= 0 else (*lines[:SHOWN_LINES], f"… {more} lines more")


def _ends(lines: list[str], most: int = 2000) -> list[str]:
    return (
        lines if len(lines) <= most else [*lines[: most // 2], f"… {len(lines) - most} lines …", *lines[-most // 2 :]]
    )
