"""Ends of commands that nobody waited for, until somebody is told; and signals to a command's tree. In the reactor's thread."""

from __future__ import annotations

import os
import signal
from collections import deque

from ..watch.process_tree import descendants
from .command import Command, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_UNTOLD = 20


class Endings:
    """Each end is told once, in whatever is answered next."""

    def __init__(self) -> None:
        self._untold: deque[dict[str, Any]] = deque(maxlen=MOST_UNTOLD)

    def note(self, command: Command, left: int) -> None:
        """``command`` ended after its caller was answered and left so many processes; one killed on request is no news."""
        if command.stop_reason != "killed":
            self.tell({"code": "command_ended", **end_of(command), "name": named(command), "left": left})

    def tell(self, notice: dict[str, Any]) -> None:
        """Say ``notice``, which has an ``id``, in whatever is answered next."""
        self._untold.append(notice)

    def note_lost(self, reply: dict[str, Any]) -> None:
        """An answer went to a host that is gone: the next one is told at least of the ends it told of."""
        told = [each for each in reply.get("notices") or () if each.get("code") == "command_ended"]
        result = reply.get("result")
        if isinstance(result, dict) and (result.get("exit_code") is not None or result.get("signal")):
            fields = {"id": result.get("id"), "exit_code": result.get("exit_code"), "signal": result.get("signal")}
            told.append({"code": "command_ended", **fields})
        known = {each["id"] for each in self._untold}
        self._untold.extend(each for each in told if each["id"] not in known)

    def forget(self, result: Any) -> None:
        """The answer to a run reached its caller after all."""
        ident = result.get("id") if isinstance(result, dict) else None
        for notice in [each for each in self._untold if each["id"] == ident]:
            self._untold.remove(notice)

    def take(self, known: Any) -> list[dict[str, Any]]:
        """Notices of what ended, but of the command ``known``, of which the answer itself tells."""
        told = []
        while self._untold:
            told.append(self._untold.popleft())
        return [notice for notice in told if notice["id"] != known or notice["code"] != "command_ended"]


def end_of(command: Command) -> dict[str, Any]:
    """How ``command`` ended: its exit code or signal, and why it was stopped, where it was."""
    exit_code, by = command.outcome
    return {
        "id": command.id, "exit_code": exit_code, "signal": by, "reason": command.stop_reason,
        "seconds": command.about.get("timeout_seconds"), **command.stall,
    }  # fmt: skip


def signal_tree(command: Command, name: str) -> int:
    """Send a signal to every process of a command; how many got it."""
    if command.runner is None or command.tree_empty:
        return 0
    reached = 0
    command.runner.unwanted = True
    for pid in descendants(command.runner.pid):
        try:
            os.kill(pid, signal.Signals[name])
            reached += 1
        except OSError:  # gone meanwhile
            pass
    return reached
