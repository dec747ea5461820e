"""Compare two runs: where the decisions differ, and where the same decision got another answer."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from agent.record.store import CallRecord, RunRecord, StepRecord
from agent.record.volatile import (
    COUNTED_NOTICES,
    DOING,
    OUTPUTS,
    UNFINISHED,
    VOLATILE_ELSEWHERE,
    VOLATILE_FIELDS,
    VOLATILE_IN_ENVELOPE,
    VOLATILE_NOTICES,
    mask_text,
)
from agent.views.step_view import answer_text
from sandbox.envelope import jsonable
from sandbox.frozen import dataclass
from sandbox.operations import OPERATIONS

from .renames import Renames

SHOWN_LINES = 40
# The hint and the schema follow from the error.
_NOT_COMPARED = VOLATILE_IN_ENVELOPE | {"hint", "schema"}
_ID = re.compile(r"\bc\d{1,6}\b")


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. ``kind`` is "answer" (another answer to the same decision), "only_a", "only_b" or "end"; ``step_a`` and
    ``step_b`` are numbers of steps or None; ``lines`` say what differs, as in a diff.
    """

    kind: str
    step_a: int | None
    step_b: int | None
    what: str
    lines: tuple[str, ...] = ()


def differences(a: RunRecord, b: RunRecord, renames: Renames | None = None) -> list[Difference]:
    """Return where two runs and their subruns differ, in order. Ids, times and the like do not count."""
    renames = renames or Renames()
    found = list(_of_steps(a.steps, b.steps, renames))
    for one, other in zip(a.subruns, b.subruns, strict=False):
        found += differences(one, other, renames)
    if a.status != b.status or list(_unlike(a.result, b.result, None, _Context(renames))):
        ends = [f"{run.status}: {json.dumps(_plain(run.result), ensure_ascii=False)}" for run in (a, b)]
        found.append(Difference("end", None, None, "the end", tuple(_lines(*ends))))
    return found


def _of_steps(a: Any, b: Any, renames: Renames) -> Iterator[Difference]:
    a, b = _calls(a), _calls(b)
    keys_a, keys_b = [_decision(call) for _, call in a], [_decision(call) for _, call in b]
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if kind == "equal":
            for (number_a, one), (number_b, other) in zip(a[a0:a1], b[b0:b1], strict=True):
                difference = answers_differ(one, other, renames)
                if difference is not None:
                    yield replace(difference, step_a=number_a, step_b=number_b)
            continue
        yield from (Difference("only_a", number, None, _named(call)) for number, call in a[a0:a1])
        yield from (Difference("only_b", None, number, _named(call)) for number, call in b[b0:b1])


def _calls(steps: Iterable[StepRecord]) -> list[tuple[int, CallRecord]]:
    """Return all calls, each with the number of its step."""
    return [(step.number, call) for step in steps for call in step.calls]


def answers_differ(a: CallRecord, b: CallRecord, renames: Renames) -> Difference | None:
    """Return what differs in the answers to the same call, None if nothing does. ``renames`` learns from them."""
    one, other = dict(a.envelope or {}), dict(b.envelope or {})
    at = [str(each.get("timestamp", "")) for each in (one, other)]
    unfinished = any(_is_unfinished(each) for each in (one, other))
    context = _Context(renames, at[0], at[1], unfinished)
    kind = OPERATIONS.get(a.tool or "")
    results = one.pop("result", None), other.pop("result", None)
    notices_of_both = one.pop("notices", None), other.pop("notices", None)
    _learn(notices_of_both, context)
    notices = [_notices(each) for each in notices_of_both]
    unlike = [
        *_unlike(_counting(one), _counting(other), None, context),
        *_unlike(results[0], results[1], None if kind is None else kind.result, context),
        *_unlike(notices[0], notices[1], None, context),
    ]
    if not unlike:
        return None
    if any(one.get(name) != other.get(name) for name in ("tool_executed", "code")):  # in the words of the answers
        lines = _lines(answer_text(a), answer_text(b))
    else:
        lines = [line for place in unlike for line in _difference_lines(*place)]
    return Difference("answer", None, None, _named(a), _shortened(lines))


@dataclass(frozen=True, slots=True)
class _Context:
    """What is known while two answers are compared: their times, and whether their command had not ended."""

    renames: Renames
    at_then: str = ""
    at_now: str = ""
    unfinished: bool = False


Unlike = tuple[str, Any, Any]


def _unlike(then: Any, now: Any, kind: type[BaseModel] | None, context: _Context, path: str = "") -> Iterator[Unlike]:
    """Yield the places where two values differ; ``kind`` is their model, if they have one."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        passing = VOLATILE_ELSEWHERE if kind is None else VOLATILE_FIELDS.get(kind.__name__, frozenset())
        for name in [*then, *(name for name in now if name not in then)]:
            if name not in passing:
                inner = None if kind is None else _model_of(kind, str(name))
                yield from _unlike(then.get(name), now.get(name), inner, context, f"{path}.{name}".lstrip("."))
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _unlike(one, other, kind, context, f"{path}[{number}]")
    elif isinstance(then, str) and isinstance(now, str):
        if not _same_text(then, now, context, path.rpartition(".")[2]):
            yield path, then, now
    elif then != now:
        yield path, then, now


def _same_text(then: str, now: str, context: _Context, field: str) -> bool:
    if field == "id":
        return context.renames.same_id(then, now)
    if field == "cwd":
        return context.renames.same_folder(then, now)
    prefix = context.unfinished and field in OUTPUTS
    return context.renames.same_text(then, now, context.at_then, context.at_now, prefix=prefix)


def _counting(envelope: Mapping[str, Any]) -> dict[str, Any]:
    counting = {name: value for name, value in envelope.items() if name not in _NOT_COMPARED}
    if envelope.get("code") in ("timeout", "command_ended"):
        counting["error"] = DOING.sub("", str(envelope.get("error")))
    return counting


def _is_unfinished(envelope: Mapping[str, Any]) -> bool:
    result = envelope.get("result")
    return envelope.get("code") in UNFINISHED or (isinstance(result, Mapping) and result.get("running") is True)


def _learn(notices: tuple[Any, Any], context: _Context) -> None:
    """Learn from notices about servers which port of the second run is which one of the first."""
    servers = [
        [str(n.get("message")) for n in each or () if isinstance(n, Mapping) and n.get("code") == "server_listening"]
        for each in notices
    ]
    for then, now in zip(*servers, strict=False):
        context.renames.same_text(then, now)


def _notices(notices: Any) -> dict[str, Any]:
    """Return the notices that count, by their codes."""
    found: dict[str, Any] = {}
    for each in notices if isinstance(notices, list | tuple) else ():
        code = str(each.get("code")) if isinstance(each, Mapping) else str(each)
        if code not in VOLATILE_NOTICES:
            message = "" if code in COUNTED_NOTICES or not isinstance(each, Mapping) else str(each.get("message"))
            found.setdefault(f"NOTICE {code}", []).append(message)
    return found


@cache
def _model_of(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a field's values, or of the items of its lists."""
    field = kind.model_fields.get(name)
    return None if field is None else _model_in(field.annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _decision(step: CallRecord) -> str:
    """Return a decision without what varies between runs: ids of commands, ephemeral ports, names of temporary files."""
    return f"{step.tool} {json.dumps(_plain(jsonable(step.args)), ensure_ascii=False, sort_keys=True)}"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _ID.sub("ID", mask_text(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if name not in VOLATILE_ELSEWHERE}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _named(step: CallRecord) -> str:
    text = f"{step.tool} {json.dumps(jsonable(step.args), ensure_ascii=False)}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _difference_lines(path: str, then: Any, now: Any) -> list[str]:
    """Return what differs at one place: texts line by line, other values as JSON."""
    texts = [each for each in (then, now) if isinstance(each, str)]
    if (
        texts
        and all(each is None or isinstance(each, str) for each in (then, now))
        and any("\n" in each for each in texts)
    ):
        return [f"@@ {path}", *_lines(then or "", now or "")]
    signs = zip("-+", (then, now), strict=True)
    return [
        f"{sign}{path}: {json.dumps(jsonable(each), ensure_ascii=False)}" for sign, each in signs if each is not None
    ]


def _lines(a: str, b: str) -> list[str]:
    """Return the lines that differ. Very long texts are compared by their ends: the time for matching grows with the square."""
    compared = list(difflib.unified_diff(_ends(a.split("\n")), _ends(b.split("\n")), lineterm="", n=1))
    return [line for line in compared[2:] if not line.startswith("@@")]


def _shortened(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - SHOWN_LINES
    return tuple(lines) if more <= 0 else (*lines[:SHOWN_LINES], f"… {more} more lines")


def _ends(lines: list[str], most: int = 2000) -> list[str]:
    return (
        lines if len(lines) <= most else [*lines[: most // 2], f"… {len(lines) - most} lines …", *lines[-most // 2 :]]
    )
