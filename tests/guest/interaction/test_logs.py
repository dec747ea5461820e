"""Following the output of a command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandbox.guest.interaction.logs import Logs
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.protocol.faults import Fault


def test_a_command_that_is_forgotten_while_it_is_followed_is_a_fault_and_not_the_end_of_the_guest() -> None:
    """A program that is not there was started in the background and followed at once: now and then the guest died of it."""
    heard: list[Any] = []

    def listen(call: Any) -> Any:
        heard.append(call)
        return lambda: None

    command = SimpleNamespace(running=True, output=SimpleNamespace(total=0), listen=listen)

    def forgotten(_: Any) -> Any:
        raise Fault("unknown_command", id="c1", known=[])

    processes: Any = SimpleNamespace(
        find=lambda _: command, logs=forgotten, place=SimpleNamespace(limits={"read_bytes": 1000})
    )
    replies: list[dict[str, Any]] = []
    reactor = Reactor()
    follower = Logs(reactor, processes, lambda *_: None)
    args = {"id": "c1", "offset": 0, "tail_lines": None, "max_bytes": 100, "follow": True, "wait_seconds": 5.0}
    follower.logs(args, lambda fields, _: replies.append(dict(fields)))
    command.running = False
    heard[0]()
    (reply,) = replies
    assert reply["fault"].code == "unknown_command"
