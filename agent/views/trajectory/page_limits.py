"""Cut the texts of a run so that a browser can hold the page of all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agent.record.store.run_record import CallRecord, RunRecord, StepRecord, all_steps, thought_in
from sandbox.text.excerpt import without_middle

AnyCall = TypeVar("AnyCall", bound=CallRecord)

# The middle of a longer text is left out.
MOST_CHARS = 400_000
# Characters of all steps together. If there are more, each text is cut to its share, but not below LEAST_CHARS.
MOST_PAGE_CHARS = 40_000_000
LEAST_CHARS = 2000
# The room of a value that is not text: a line of JSON, with its indentation.
VALUE_CHARS = 10


def bounded(run: RunRecord) -> RunRecord:
    """Return the run with its texts cut so that a browser can hold all of them."""
    steps = list(all_steps(run))
    size = sum(min(length, MOST_CHARS) for step in steps for length in _lengths(_texts(step)))
    if size <= MOST_PAGE_CHARS:
        return run
    return _with_cut(run, max(MOST_PAGE_CHARS // (len(steps) * 2), LEAST_CHARS))


def _texts(step: StepRecord) -> list[Any]:
    calls = [[call.args, call.envelope, call.changes, call.shown] for call in step.calls]
    return [step.thought, *calls]


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


def _with_cut(run: RunRecord, most: int) -> RunRecord:
    def shorter(value: Any) -> Any:
        return _shorter(value, most, iter(range(min(most, MOST_CHARS) // VALUE_CHARS)))

    def shorter_event(event: Any, **texts: Any) -> Any:
        return None if event is None else replace(event, **{name: shorter(text) for name, text in texts.items()})

    def shorter_call(call: AnyCall, **more: Any) -> AnyCall:
        decided, executed, changed = call.decided, call.executed, call.changed
        thought = {"thought": thought_in(decided), "reply": {"reply": ""}} if decided is not None else {}
        return replace(
            call,
            decided=shorter_event(decided, args=call.args, call=call.call, **thought),
            executed=shorter_event(executed, envelope=call.envelope, shown=call.shown),
            changed=shorter_event(changed, patch=call.changes, left_out=()),
            notices=None,
            **more,
        )

    steps = [shorter_call(step, others=[shorter_call(call) for call in step.others]) for step in run.steps]
    return replace(run, steps=steps, subruns=[_with_cut(each, most) for each in run.subruns])


def _shorter(value: Any, most: int, left: Iterator[int]) -> Any:
    """Cut texts and names to ``most`` characters, and lists when no values are ``left`` that they may hold."""
    if isinstance(value, str):
        return without_middle(value, most)
    if isinstance(value, Mapping):
        return {without_middle(str(name), most): _shorter(each, most, left) for name, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    kept = [_shorter(each, most, left) for each, _ in zip(value, left, strict=False)]
    return kept if len(kept) == len(value) else [*kept, f"[…{len(value) - len(kept)} more left out…]"]
