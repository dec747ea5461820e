"""A host's end of the pipe and a scripted guest at the other, for the tests of the transport."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import transport
from sandbox.pipe.transport import Transport
from sandbox.testing import GuestRequest, ScriptedGuest

GRACE = 0.1
Script = Callable[[ScriptedGuest, GuestRequest], None]


def explain(reason: str, detail: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(reason, f"Explained: {reason}: {detail}.")


@contextmanager
def talk(script: Script, hello: dict[str, Any] | None = None) -> Iterator[tuple[Transport, ScriptedGuest]]:
    """A host and a scripted guest that have greeted each other, with a shorter wait for late answers."""
    with pytest.MonkeyPatch.context() as patched, ScriptedGuest(script, hello) as guest:
        patched.setattr(transport, "GRACE_SECONDS", GRACE)
        host = Transport(guest.stream, explain)
        try:
            host.open({"place": {}}, 60)
            yield host, guest
        finally:
            host.close()


def eventually(holds: Callable[[], object]) -> bool:
    until = time.monotonic() + 60
    while not holds() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(holds())


def silent(guest: ScriptedGuest, request: GuestRequest) -> None:
    """No answer."""


def echo(guest: ScriptedGuest, request: GuestRequest) -> None:
    guest.reply(request, request.args, request.blob)


def send_in_pieces(guest: ScriptedGuest, patched: pytest.MonkeyPatch) -> None:
    """Have the pipe to ``guest`` take the beginning of what is sent, then nothing for a moment."""
    send, calls = guest.stream.send, itertools.count()
    patched.setattr(guest.stream, "send", lambda data, seconds: 0 if next(calls) % 2 else send(data[:10], seconds))


def pong_and_echo(guest: ScriptedGuest, request: GuestRequest) -> None:
    """Answer a ping first, as a guest does, then the request."""

    def answer() -> None:
        assert guest.wait_for(Kind.PING, 60)
        for kind, channel, payload in guest.heard:
            if kind == Kind.PING:
                guest.frame(Kind.PONG, channel, payload)
        echo(guest, request)

    threading.Thread(target=answer).start()


def fails(host: Transport, reason: str, *words: str, **options: Any) -> SandboxUnavailableError:
    with pytest.raises(SandboxUnavailableError) as caught:
        host.request("read", {}, **{"timeout_seconds": 60.0, **options})
    assert caught.value.reason == reason, caught.value
    for word in words:
        assert word in str(caught.value)
    return caught.value
