"""Load what the first operation needs while the engine starts its sandbox: 0.1 s of a processor that would be waited for later."""

from __future__ import annotations

import contextlib
import threading

from sandbox import operations

_begun = threading.Lock()


def load_meanwhile() -> None:
    """Begin to load the network's part and the operations in a thread of its own, once in a process; returns at once.

    Who needs one of them earlier waits for it, as with any import.
    """
    if _begun.acquire(blocking=False):
        with contextlib.suppress(RuntimeError):  # no more threads: then each is loaded by who needs it
            threading.Thread(target=_load, name="gamebox-loading", daemon=True).start()


def _load() -> None:
    import sandbox.network.egress  # noqa: F401 - asyncio takes 12 ms to load

    operations.load()
