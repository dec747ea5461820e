"""Notices that wait for the next answer, above all ends of commands that no caller waited for. In the reactor's thread."""

from __future__ import annotations

from ..builtin import deque
from .command import Command, describe_command, describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_PENDING = 20


class PendingNotices:
    """Each notice is sent once, with the next answer, whatever it answers."""

    def __init__(self) -> None:
        self._pending: deque[dict[str, Any]] = deque(maxlen=MOST_PENDING)

    def add(self, notice: dict[str, Any]) -> None:
        """Send ``notice`` with the next answer; it has an ``id`` if it is about a command."""
        self._pending.append(notice)

    def add_end(self, command: Command, left: int) -> None:
        """Report that ``command`` ended after its caller was answered and left ``left`` processes.

        Nothing is reported if it was killed on request: the caller knows.
        """
        if command.stop_reason != "killed":
            fields = {**describe_end(command), "name": describe_command(command), "left": left}
            self.add({"code": "command_ended", **fields})

    def restore(self, reply: dict[str, Any]) -> None:
        """Take back the ends of commands from an answer that went to a host that is gone."""
        ends = [notice for notice in reply.get("notices") or () if notice.get("code") == "command_ended"]
        result = reply.get("result")
        if isinstance(result, dict) and (result.get("exit_code") is not None or result.get("signal")):
            fields = {"id": result.get("id"), "exit_code": result.get("exit_code"), "signal": result.get("signal")}
            ends.append({"code": "command_ended", **fields})
        known = {notice.get("id") for notice in self._pending}
        self._pending.extend(notice for notice in ends if notice["id"] not in known)

    def remove(self, result: Any) -> None:
        """Forget what is pending about the command of a ``result`` that reached its caller after all."""
        ident = result.get("id") if isinstance(result, dict) else None
        for notice in [each for each in self._pending if ident is not None and each.get("id") == ident]:
            self._pending.remove(notice)

    def take(self, answered: Any) -> list[dict[str, Any]]:
        """Return the pending notices, without the end of the command with the id ``answered``: the answer itself reports it."""
        notices = []
        while self._pending:
            notices.append(self._pending.popleft())
        return [notice for notice in notices if notice.get("id") != answered or notice["code"] != "command_ended"]
