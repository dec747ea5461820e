"""Load what the first operation needs, 0.1 s of a processor: with the names of ``sandbox``, or while an engine starts a sandbox.

A program that imports an environment from ``sandbox`` has loaded everything then, and a service before its first request. The
command line, which starts a sandbox at once, imports the module of the environment, and loads the rest when it would only wait.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from sandbox import operations

# In the order in which a start needs them.
_ALWAYS, _CONNECTIONS = ("sandbox.pipe.transport", "sandbox.operations.commands"), "sandbox.network.egress"
# What a single command does not need: the state of the files, uploads and downloads.
_LATER = ("sandbox.state.fork", "sandbox.transfers.copying")


def load_meanwhile(*, connections: bool) -> None:
    """Begin to load pipe, commands, and what ``connections`` need, in a thread of its own, unless they are loaded.

    Returns at once. What is needed earlier, or is another operation, loads when it is used, as with any import.
    """
    wanted = [*_ALWAYS, _CONNECTIONS] if connections else _ALWAYS
    missing = [name for name in wanted if name not in sys.modules]
    if missing:
        with contextlib.suppress(RuntimeError):  # no more threads: then each is loaded by who needs it
            threading.Thread(target=_load, args=(missing,), name="gamebox-loading", daemon=True).start()


def _load(names: Sequence[str]) -> None:
    for name in names:
        import_module(name)


def load() -> None:
    """Load all operations and everything else that is loaded when it is used; does nothing when that is done."""
    import sandbox.network.egress  # asyncio takes 12 ms to load
    import sandbox.network.forward  # noqa: F401 - not when a port is forwarded: no descriptor may be left then

    operations.load()
    _load((*_ALWAYS, *_LATER))
    if "docker" in sys.modules:
        _load(("tenacity",))  # to ask an engine again
