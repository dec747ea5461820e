"""Commands in the background by the numbers that the old contracts know, and what they have printed since it was last asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sandbox.environment.base import Environment

from .observations import CmdOutputObservation


@dataclass
class BackgroundCommand:
    """A command in the background; ``id`` is its number, ``ours`` its id in the sandbox, ``offset`` the first byte not told yet."""

    id: int
    command: str
    ours: str
    offset: int = 0
    ended: bool = False


class Background:
    """All of a run, by number, in the order of their start."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.commands: dict[int, BackgroundCommand] = {}

    def started(self, ours: str, command: str) -> BackgroundCommand:
        """A further command has this id in the sandbox."""
        new = BackgroundCommand(len(self.commands), command, ours)
        self.commands[new.id] = new
        return new

    def id_of(self, number: int) -> str:
        """The id in the sandbox; for a number that is none, what the sandbox will not know."""
        return self.commands[number].ours if number in self.commands else str(number)

    def command_of(self, number: int) -> str:
        """The shell text."""
        return self.commands[number].command if number in self.commands else ""

    def news(self) -> list[CmdOutputObservation]:
        """What was printed since the last call, and the end of those that have ended."""
        found = [self._news(each) for each in self.commands.values() if not each.ended]
        return [one for one in found if one is not None]

    def wait(self, seconds: float) -> None:
        """Until the latest command that still runs prints something or ends, at most ``seconds``."""
        running = [each for each in self.commands.values() if not each.ended]
        if running:
            last = running[-1]
            asked = {"id": last.ours, "offset": last.offset, "follow": True, "wait_seconds": seconds, "max_bytes": 1}
            self.environment.execute("logs", asked)

    def snapshot(self) -> list[dict[str, Any]]:
        """All of it as data, for ``restore``."""
        return [asdict(each) for each in self.commands.values()]

    def restore(self, data: list[dict[str, Any]]) -> None:
        """Take over what ``snapshot`` gave."""
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
