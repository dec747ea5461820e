"""Commands in the background by the numbers of the old contracts, and the output that has not been reported yet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sandbox.environment.base import Environment

from .observations import CmdOutputObservation


@dataclass
class BackgroundCommand:
    """A command in the background. ``id`` is its number, ``ours`` its id in the sandbox, ``offset`` the first
    unreported byte.
    """

    id: int
    command: str
    ours: str
    offset: int = 0
    ended: bool = False


class Background:
    """The background commands of a run by number, in the order of their start."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.commands: dict[int, BackgroundCommand] = {}

    def started(self, ours: str, command: str) -> BackgroundCommand:
        """Add the command with this id in the sandbox."""
        new = BackgroundCommand(len(self.commands), command, ours)
        self.commands[new.id] = new
        return new

    def id_of(self, number: int) -> str:
        """Return the id in the sandbox; for an unknown number, an id that the sandbox does not know either."""
        return self.commands[number].ours if number in self.commands else str(number)

    def command_of(self, number: int) -> str:
        """Return the text of a command."""
        return self.commands[number].command if number in self.commands else ""

    def news(self) -> list[CmdOutputObservation]:
        """Return what was printed since the last call, and which commands have ended."""
        found = [self._news(each) for each in self.commands.values() if not each.ended]
        return [one for one in found if one is not None]

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the latest running command prints something or ends."""
        running = [each for each in self.commands.values() if not each.ended]
        if running:
            last = running[-1]
            arguments = {
                "id": last.ours,
                "offset": last.offset,
                "follow": True,
                "wait_seconds": seconds,
                "max_bytes": 1,
            }
            self.environment.execute("logs", arguments)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return everything as data, for ``restore``."""
        return [asdict(each) for each in self.commands.values()]

    def restore(self, data: list[dict[str, Any]]) -> None:
        """Restore what ``snapshot`` returned."""
        self.commands = {each["id"]: BackgroundCommand(**each) for each in data}

    def _news(self, each: BackgroundCommand) -> CmdOutputObservation | None:
        answer = self.environment.execute("logs", {"id": each.ours, "offset": each.offset})
        if not answer.ok:  # the sandbox has forgotten it
            each.ended = True
            return CmdOutputObservation(f"Its output is lost: {answer.error}", each.id, each.command, -1)
        result = answer.result
        each.offset = result.next_offset
        each.ended = not result.running and result.next_offset >= result.total_bytes
        if not result.content and not each.ended:
            return None
        code = 0 if result.running else -1 if result.exit_code is None else result.exit_code
        return CmdOutputObservation(result.content, each.id, each.command, code)
