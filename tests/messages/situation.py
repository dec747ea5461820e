"""What a situation is: where a model stands, what it does, and which next step is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent import Action
from sandbox.environment.base import Environment

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Situation:
    """One real situation in which a model meets one of ``codes``.

    ``task`` is what the model is to do, in a line. ``before`` are its earlier calls, ``call`` is the last one: a tool with its
    arguments, or the whole reply as text. ``setup`` prepares the environment; what it returns fills the {fields} of the calls.
    ``key`` says which next step is right and ``wrong`` which is not: both were written from the situation, before the text
    was read. ``below`` are the replies of an agent that ``call`` starts, ``tools`` are further tools of the agent. ``place`` names
    the environment (see ``stage``), ``agent`` who acts, ``around`` wraps the environment.
    ``linux`` is the oldest kernel on which it happens.
    ``cut_off`` ends the process of the run, as it were, before the answer of ``call`` is recorded; the run is resumed then.
    """

    name: str
    codes: tuple[str, ...]
    task: str
    call: Call | str
    key: str
    wrong: str
    before: Sequence[Call | str] = ()
    setup: Callable[[Environment], Mapping[str, Any] | None] | None = None
    around: Callable[[Environment], Environment] | None = None
    below: Sequence[Call | str] = ()
    tools: Sequence[Action] = ()
    cut_off: bool = False
    place: str = "sandbox"
    agent: str = "coding"
    language: str | None = None
    linux: tuple[int, int] = (0, 0)
