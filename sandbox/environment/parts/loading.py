"""Load what the first operation needs, 0.1 s of a processor: with the names of ``sandbox``, or while an engine starts a sandbox.

A program that imports an environment from ``sandbox`` has loaded everything then. The command line, which starts a sandbox at
once, imports the module of the environment, and loads the rest when it would only wait.
"""

from __future__ import annotations

import contextlib
import threading

from sandbox import operations

_begun = threading.Lock()


def load_meanwhile(*, connections: bool) -> None:
    """Begin to load the operations on commands, and what ``connections`` need, in a thread of its own, once in a process.

    Returns at once. What is needed earlier, or is another operation, loads when it is used, as with any import.
    """
    if not operations.is_loaded() and _begun.acquire(blocking=False):
        with contextlib.suppress(RuntimeError):  # no more threads: then each is loaded by who needs it
            threading.Thread(target=_load_first, args=(connections,), name="gamebox-loading", daemon=True).start()


def _load_first(connections: bool) -> None:
    import sandbox.operations.commands

    if connections:
        import sandbox.network.egress  # noqa: F401


def load() -> None:
    """Load both; does nothing when they are loaded."""
    import sandbox.network.egress  # asyncio takes 12 ms to load
    import sandbox.network.forward  # noqa: F401 - not when a port is forwarded: no descriptor may be left then

    operations.load()
