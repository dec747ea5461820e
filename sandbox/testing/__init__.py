"""Test doubles and fault injection for tests of code that uses a sandbox.

``FakeEnvironment`` needs no engine and runs no command. ``ScriptedGuest`` is the far end of a pipe and misbehaves on demand.
``EngineProxy``, before a real engine, and ``FaultyStream``, over a real stream, disturb what passes through them.
"""

from .commands import FakeRun, Ran
from .engine_proxy import EngineProxy
from .fake import FakeEnvironment
from .faults import Faults, FaultyStream
from .scripted_guest import GuestRequest, ScriptedGuest, SocketStream

__all__ = [
    "EngineProxy",
    "FakeEnvironment",
    "FakeRun",
    "Faults",
    "FaultyStream",
    "GuestRequest",
    "Ran",
    "ScriptedGuest",
    "SocketStream",
]
