"""Advice in the words of its reader.

A model acts through tools, a person types ``gamebox``, a program of the host calls the library. A hint that is the same for all
three is a plain string. Otherwise it is a ``Hint``: the string is for a model, and the other two are its attributes.
``phrased`` makes a Hint from a sentence with phrases that differ for each reader.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

Reader = Literal["model", "cli", "host"]
_OPTIONS = {"memory_bytes": "--memory", "disk_bytes": "--disk", "cpus": "--cpus", "timeout_seconds": "--timeout"}


class Hint(str):
    """Advice for a model; ``cli`` and ``host`` are the same advice for the other readers, "" for no advice."""

    __slots__ = ("cli", "host")
    cli: str
    host: str

    def __new__(cls, model: str, cli: str | None = None, host: str | None = None) -> Self:
        hint = super().__new__(cls, model)
        hint.cli = model if cli is None else cli
        hint.host = model if host is None else host
        return hint

    def __reduce__(self) -> tuple[type[Hint], tuple[str, str, str]]:
        return type(self), (str(self), self.cli, self.host)


class Phrase(NamedTuple):
    """A phrase in the words of each reader."""

    model: str
    cli: str
    host: str


def hint_for(reader: Reader, hint: str) -> str:
    """Return the hint for ``reader``."""
    if not isinstance(hint, Hint) or reader == "model":
        return str(hint)
    return hint.cli if reader == "cli" else hint.host


def changed(hint: str, change: Callable[[str], str]) -> str:
    """Return the hint with ``change`` applied to each of its texts, as by a mask."""
    return Hint(change(str(hint)), change(hint.cli), change(hint.host)) if isinstance(hint, Hint) else change(hint)


def phrased(sentence: str, /, **phrases: Phrase) -> Hint:
    """Return the sentence with its {names} replaced by the phrases for each reader."""
    return Hint(*(sentence.format(**{name: phrase[n] for name, phrase in phrases.items()}) for n in range(3)))


def limit(name: str) -> Phrase:
    """Return the phrase for a limit of the sandbox that the reader may change."""
    cli = _OPTIONS.get(name, f"the limit {name}, which has no option here")
    return Phrase(f"the sandbox's limit {name}", cli, f"Limits({name}=...)")


def attach(name: str, *, take_over: bool = False) -> Phrase:
    """Return the phrase for attaching to a kept sandbox."""
    host = f"DockerEnvironment.attach({name!r}{', take_over=True' if take_over else ''})"
    return Phrase(host, f"`gamebox run --in {name}{' --take-over' if take_over else ''} -- COMMAND`", host)


def opened(*rules: str) -> Phrase:
    """Return the phrase for rules that allow a host."""
    listed = ", ".join(map(repr, rules))
    return Phrase(
        "",
        " ".join(f"--allow {shlex.quote(rule)}" for rule in rules) or "--allow RULE",
        f"env.allow({listed or '...'})",
    )
