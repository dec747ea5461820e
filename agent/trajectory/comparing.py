"""Two recordings side by side: where the decisions differ, and where the same decision was answered differently."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from sandbox.envelope import jsonable
from sandbox.operations import OPERATIONS

from .names import Names
from .passing import COUNTED_NOTICES, OUTPUTS, PASSING, PASSING_ELSEWHERE, PASSING_NOTICES, UNFINISHED, masked
from .recorded import Recorded, RecordedStep
from .wording import answer_text

SHOWN_LINES = 40
# Facts about the one time that an action was carried out; what to do next follows from the error.
_PASSING_IN_ENVELOPE = frozenset({"timestamp", "duration_ms", "hint", "schema"})
_ID = re.compile(r"\bc\d{1,6}\b")


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


def differences(a: Recorded, b: Recorded, names: Names | None = None) -> list[Difference]:
    """Where two runs differ, in their order; ids, times and the like do not count. Delegated runs are looked at as well."""
    names = names or Names()
    found = list(_of_steps(a.steps, b.steps, names))
    for one, other in zip(a.children, b.children, strict=False):
        found += differences(one, other, names)
    if a.status != b.status or list(_unlike(a.result, b.result, None, _Told(names))):
        ends = [f"{run.status}: {json.dumps(_plain(run.result), ensure_ascii=False)}" for run in (a, b)]
        found.append(Difference("end", None, None, "the end", tuple(_lines(*ends))))
    return found


def _of_steps(a: Any, b: Any, names: Names) -> Iterator[Difference]:
    keys_a, keys_b = [_decision(s) for s in a], [_decision(s) for s in b]
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if kind == "equal":
            for one, other in zip(a[a0:a1], b[b0:b1], strict=True):
                difference = answers_differ(one, other, names)
                if difference is not None:
                    yield difference
            continue
        yield from (Difference("only_a", s.number, None, _named(s)) for s in a[a0:a1])
        yield from (Difference("only_b", None, s.number, _named(s)) for s in b[b0:b1])


def answers_differ(a: RecordedStep, b: RecordedStep, names: Names) -> Difference | None:
    """What differs in the answers to two decisions that are the same; None where nothing does. ``names`` learns from them."""
    one, other = dict(a.envelope or {}), dict(b.envelope or {})
    at = [str(each.get("timestamp", "")) for each in (one, other)]
    unfinished = any(_is_unfinished(each) for each in (one, other))
    told = _Told(names, at[0], at[1], unfinished)
    kind = OPERATIONS.get(a.tool or "")
    results = one.pop("result", None), other.pop("result", None)
    given = one.pop("notices", None), other.pop("notices", None)
    _learn(given, told)
    notices = [_notices(each) for each in given]
    unlike = [
        *_unlike(_counting(one), _counting(other), None, told),
        *_unlike(results[0], results[1], None if kind is None else kind.result, told),
        *_unlike(notices[0], notices[1], None, told),
    ]
    if not unlike:
        return None
    if any(one.get(name) != other.get(name) for name in ("tool_executed", "code")):  # in the words of the answers
        lines = _lines(answer_text(a), answer_text(b))
    else:
        lines = [line for place in unlike for line in _told_lines(*place)]
    return Difference("answer", a.number, b.number, _named(a), _shortened(lines))


@dataclass(frozen=True, slots=True)
class _Told:
    """What is known while two answers are compared: when each was told, and whether what they tell of had not ended."""

    names: Names
    at_then: str = ""
    at_now: str = ""
    unfinished: bool = False


Unlike = tuple[str, Any, Any]


def _unlike(then: Any, now: Any, kind: type[BaseModel] | None, told: _Told, path: str = "") -> Iterator[Unlike]:
    """The places where two values differ; ``kind`` is the model that they are of, where they are of one."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        passing = PASSING_ELSEWHERE if kind is None else PASSING.get(kind.__name__, frozenset())
        for name in [*then, *(name for name in now if name not in then)]:
            if name not in passing:
                inner = None if kind is None else _model_of(kind, str(name))
                yield from _unlike(then.get(name), now.get(name), inner, told, f"{path}.{name}".lstrip("."))
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _unlike(one, other, kind, told, f"{path}[{number}]")
    elif isinstance(then, str) and isinstance(now, str):
        if not _same_text(then, now, told, path.rpartition(".")[2]):
            yield path, then, now
    elif then != now:
        yield path, then, now


def _same_text(then: str, now: str, told: _Told, field: str) -> bool:
    if field == "id":
        return told.names.same_id(then, now)
    if field == "cwd":
        return told.names.same_folder(then, now)
    begun = told.unfinished and field in OUTPUTS
    return told.names.same_text(then, now, told.at_then, told.at_now, begun=begun)


def _counting(envelope: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in envelope.items() if name not in _PASSING_IN_ENVELOPE}


def _is_unfinished(envelope: Mapping[str, Any]) -> bool:
    result = envelope.get("result")
    return envelope.get("code") in UNFINISHED or (isinstance(result, Mapping) and result.get("running") is True)


def _learn(notices: tuple[Any, Any], told: _Told) -> None:
    """Which ports of the one run are those of the other, from what is said of servers."""
    said = [
        [str(n.get("message")) for n in each or () if isinstance(n, Mapping) and n.get("code") == "server_listening"]
        for each in notices
    ]
    for then, now in zip(*said, strict=False):
        told.names.same_text(then, now)


def _notices(notices: Any) -> dict[str, Any]:
    """Those that count, by their codes."""
    found: dict[str, Any] = {}
    for each in notices if isinstance(notices, list | tuple) else ():
        code = str(each.get("code")) if isinstance(each, Mapping) else str(each)
        if code not in PASSING_NOTICES:
            told = "" if code in COUNTED_NOTICES or not isinstance(each, Mapping) else str(each.get("message"))
            found.setdefault(f"NOTICE {code}", []).append(told)
    return found


@cache
def _model_of(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a field's values, or of what it is a list of."""
    field = kind.model_fields.get(name)
    return None if field is None else _model_in(field.annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _decision(step: RecordedStep) -> str:
    """A decision as it is the same in another run: ids of commands, given ports and names of temporary files do not count."""
    return f"{step.tool} {json.dumps(_plain(jsonable(step.args)), ensure_ascii=False, sort_keys=True)}"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _ID.sub("ID", masked(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if name not in PASSING_ELSEWHERE}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _named(step: RecordedStep) -> str:
    text = f"{step.tool} {json.dumps(jsonable(step.args), ensure_ascii=False)}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _told_lines(path: str, then: Any, now: Any) -> list[str]:
    """What differs at one place: texts line by line, all else as it stands."""
    texts = [each for each in (then, now) if isinstance(each, str)]
    if texts and all(each is None or isinstance(each, str) for each in (then, now)) and any("\n" in each for each in texts):
        return [f"@@ {path}", *_lines(then or "", now or "")]
    signs = zip("-+", (then, now), strict=True)
    return [f"{sign}{path}: {json.dumps(jsonable(each), ensure_ascii=False)}" for sign, each in signs if each is not None]


def _lines(a: str, b: str) -> list[str]:
    """The lines that differ. Very long texts are compared by their first and last lines alone: matching takes their square."""
    compared = list(difflib.unified_diff(_ends(a.split("\n")), _ends(b.split("\n")), lineterm="", n=1))
    return [line for line in compared[2:] if not line.startswith("@@")]


def _shortened(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - SHOWN_LINES
    return tuple(lines) if more <= 0 else (*lines[:SHOWN_LINES], f"… {more} lines more")


def _ends(lines: list[str], most: int = 2000) -> list[str]:
    return (
        lines if len(lines) <= most else [*lines[: most // 2], f"… {len(lines) - most} lines …", *lines[-most // 2 :]]
    )
