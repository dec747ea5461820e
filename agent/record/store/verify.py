"""Verify the log: that a run has all events that were written, unchanged and in order."""

from __future__ import annotations

from agent.record.events import KINDS, RunEnded, RunResumed, event_of
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.names import is_run_id

from .chain import decode_event, digest_of, hash_of
from .log import EventLog, Logged

# A chain proves nothing about what was behind its end. Every verdict says so.
CANNOT_SHOW = (
    "A chain of hashes cannot show that events are missing at its end, nor that somebody rewrote the whole run: keep the head "
    "elsewhere and give it as --head."
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong at an event; ``id`` is its present place."""

    id: int | str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found about one run. ``head`` is "ID:HASH" of its last event; ``ended`` is False if the last part of the run has
    no RunEnded: it is going on, was cut off, or its end was removed. ``signed`` says that this user's Gamebox wrote it.
    """

    run: str
    events: int
    head: str
    ended: bool
    flaws: tuple[Flaw, ...] = ()
    signed: bool = False

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.flaws


def verify(log: EventLog, run: str, head: str | None = None) -> Verdict:
    """Check every event of a run, and every text that it refers to.

    ``head`` is from an earlier verdict: that event must still be there, unchanged. Raises SandboxError ``run_not_found``, and
    ``log_unusable`` if the file cannot be read at all.
    """
    flaws: list[Flaw] = []
    previous, count, ended, at_head = "", 0, False, False
    for logged in log.logged(run):
        count += 1
        flaws += [Flaw(logged.id, what) for what in _flaws(log, logged, count, previous)]
        previous = str(logged.hash)
        ended = logged.kind == RunEnded.__name__ or (ended and logged.kind != RunResumed.__name__)
        at_head = at_head or f"{logged.id}:{logged.hash}" == head
    if head is not None and not at_head:
        flaws.append(Flaw(head[:80], "the event of this head is no longer there"))
    if log.removed(run) is not None and count:
        flaws.append(Flaw(count, "the run has a tombstone, but also events"))
    if not is_run_id(run):
        flaws.append(Flaw(count, "its id is not valid"))
    signed = not flaws and log.is_signed(run)
    return Verdict(run=run, events=count, head=f"{count}:{previous}", ended=ended, flaws=tuple(flaws), signed=signed)


def is_trusted(log: EventLog, run: str) -> bool:
    """Return whether this user's Gamebox wrote all of a run and its subruns, and nobody has changed any of it since."""
    below, waiting = [run], [run]
    while waiting:
        each = waiting.pop()
        if not verify(log, each).signed:
            return False
        new = [child for child in log.children(each) if child not in below]
        below, waiting = below + new, waiting + new
    return True


def verify_all(log: EventLog) -> list[Verdict]:
    """Do the same as ``verify`` for every run that has an event, even if its first event is missing."""
    return [verify(log, run) for run in log.every_run()]


def _flaws(log: EventLog, logged: Logged, place: int, previous: str) -> list[str]:
    if logged.id != place:
        return [f"event {place} is missing, or events stand in another order"]
    found = []
    if logged.previous != previous:
        found.append("the event before it is not the original one")
    try:
        expected = hash_of(logged.run, logged.id, logged.parent, logged.kind, logged.at, logged.data, logged.previous)
    except (TypeError, ValueError):
        expected = ""
    if logged.hash != expected:
        found.append("it was changed")
        return found
    if logged.kind not in KINDS:
        return [*found, f"this version does not know its kind {logged.kind!r}"]
    return found + _flawed_texts(log, logged)


def _flawed_texts(log: EventLog, logged: Logged) -> list[str]:
    found = []

    def looked_over(digest: str) -> bytes:
        content = log.blob(digest)
        if digest_of(content) != digest:
            found.append(f"the text {digest[:12]} was changed")
        if not log.uses(logged.run, digest):
            found.append(f"the run is not noted as a user of the text {digest[:12]}")
        return content

    try:
        event_of(logged.kind, decode_event(logged.data, looked_over))
    except KeyError as error:
        found.append(str(error.args[0]))
    except (ValueError, RecursionError, SandboxError) as error:
        found.append(f"it cannot be read: {error}")
    return found
