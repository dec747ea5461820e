"""Advice for its reader: a model acts through tools, a person types ``gamebox``, a program of the host calls the library.

A hint that is the same for all three is a plain text. Where it is not, it is a ``Hint``: for a model as it stands, with the other
two beside it. ``phrased`` makes one from a sentence with phrases that each reader has his own words for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

Reader = Literal["model", "cli", "host"]
_OPTIONS = {"memory_bytes": "--memory", "disk_bytes": "--disk", "cpus": "--cpus", "timeout_seconds": "--timeout"}


class Hint(str):
    """Advice in the words for a model; ``cli`` and ``host`` are the same advice for the other readers, "" for no advice."""

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
    """The same thing in the words for each reader."""

    model: str
    cli: str
    host: str


def hint_for(reader: Reader, hint: str) -> str:
    """The hint as ``reader`` can follow it."""
    if not isinstance(hint, Hint) or reader == "model":
        return str(hint)
    return hint.cli if reader == "cli" else hint.host


def changed(hint: str, change: Callable[[str], str]) -> str:
    """The hint with each of its texts changed, as by a mask."""
    return Hint(change(str(hint)), change(hint.cli), change(hint.host)) if isinstance(hint, Hint) else change(hint)


def phrased(sentence: str, /, **phrases: Phrase) -> Hint:
    """The sentence with its {names} replaced by the phrases for each reader."""
    return Hint(*(sentence.format(**{name: phrase[n] for name, phrase in phrases.items()}) for n in range(3)))


def limit(name: str) -> Phrase:
    """A limit of the sandbox that may be set to another value."""
    cli = _OPTIONS.get(name, f"the limit {name}, which has no option here")
    return Phrase(f"the sandbox's limit {name}", cli, f"Limits({name}=...)")


def attach(name: str, *, take_over: bool = False) -> Phrase:
    """The way back to a sandbox that goes on."""
    host = f"DockerEnvironment.attach({name!r}{', take_over=True' if take_over else ''})"
    return Phrase(host, f"`gamebox run --in {name}{' --take-over' if take_over else ''} -- COMMAND`", host)


def opened(*rules: str) -> Phrase:
    """A rule that opens a host."""
    listed = ", ".join(map(repr, rules))
    return Phrase("", " ".join(f"--allow {shlex.quote(rule)}" for rule in rules) or "--allow RULE", f"env.allow({listed or '...'})")
