"""Runs cut so that a browser can hold the page of all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from .recorded import Recorded, RecordedRun, RecordedStep

# Of a longer text the middle is left out.
MOST_CHARS = 400_000
# Characters of all steps together; where there are more, each text is cut to its share, but not below LEAST_CHARS.
MOST_PAGE_CHARS = 40_000_000
LEAST_CHARS = 2000
# What a value that is no text takes: a line of JSON, with its indentation.
VALUE_CHARS = 10


def bounded(run: Recorded) -> Recorded:
    """The run, its texts cut so that a browser can hold all of them."""
    steps = list(_all_steps(run))
    size = sum(
        min(n, MOST_CHARS) for step in steps for n in _lengths([step.thought, step.args, step.envelope, step.changes, step.shown])
    )
    if size <= MOST_PAGE_CHARS:
        return run
    most = max(MOST_PAGE_CHARS // (len(steps) * 2), LEAST_CHARS)
    return _with_cut(run, most)


def _all_steps(run: Recorded) -> Iterator[RecordedStep]:
    yield from run.steps
    for child in run.children:
        yield from _all_steps(child)


def _lengths(value: object) -> Iterator[int]:
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, Mapping):
        yield VALUE_CHARS
        for name, each in value.items():
            yield len(str(name))
            yield from _lengths(each)
    elif isinstance(value, list | tuple):
        yield VALUE_CHARS
        for each in value:
            yield from _lengths(each)
    elif value is not None:
        yield VALUE_CHARS


def _with_cut(run: Recorded, most: int) -> Recorded:
    def shorter(value: Any) -> Any:
        return _shorter(value, most, iter(range(min(most, MOST_CHARS) // VALUE_CHARS)))

    steps = tuple(
        replace(
            s,
            thought=shorter(s.thought),
            args=shorter(s.args),
            envelope=shorter(s.envelope),
            changes=shorter(s.changes),
            shown=shorter(s.shown),
        )
        for s in run.steps
    )
    children = tuple(_with_cut(child, most) for child in run.children)
    known = {f.name: getattr(run, f.name) for f in fields(RecordedRun)}
    return RecordedRun(**{**known, "steps": steps, "children": children})


def _shorter(value: Any, most: int, left: Iterator[int]) -> Any:
    """Texts and names cut to ``most``, lists once none are ``left`` of the values that may be in them."""
    if isinstance(value, str):
        return cut(value, most)
    if isinstance(value, Mapping):
        return {cut(str(name), most): _shorter(each, most, left) for name, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    kept = [_shorter(each, most, left) for each, _ in zip(value, left, strict=False)]
    return kept if len(kept) == len(value) else [*kept, f"[…{len(value) - len(kept)} more left out…]"]


def cut(text: str, most: int) -> str:
    """``text``, of more characters the first and the last."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters left out…] {text[-half:]}"
