"""Fakes for tests of what uses a sandbox: an environment in memory, and a guest that plays a script.

``FakeEnvironment`` needs no engine and starts no process; ``ScriptedGuest`` is the far end of a pipe that misbehaves on demand.
"""

from .commands import FakeRun, Ran
from .fake import FakeEnvironment
from .scripted_guest import GuestRequest, ScriptedGuest, SocketStream

__all__ = ["FakeEnvironment", "FakeRun", "GuestRequest", "Ran", "ScriptedGuest", "SocketStream"]
