"""Names of the standard library from the interpreter's own modules in C.

The modules in Python that usually give them (``functools``, ``collections``, ``threading``, ``queue``, ``signal``, ``socket``)
import each other, ``enum``, ``re`` and ``selectors``: 2 MiB in every sandbox, and half of the time that a guest takes to start.
What a guest imports before its first operation is held by ``tests/guest/test_rest.py``; operations import what they like when they
are first asked for.
"""

from __future__ import annotations

import _socket as socket
from _thread import start_new_thread as start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections import deque
    from functools import partial
    from heapq import heappop, heappush
    from queue import Empty, SimpleQueue
    from threading import Lock
else:
    import _signal as signal
    from _collections import deque
    from _functools import partial
    from _heapq import heappop, heappush
    from _queue import Empty, SimpleQueue
    from _thread import allocate_lock as Lock  # noqa: N812  the name it has in threading

__all__ = ["Empty", "Lock", "SimpleQueue", "deque", "heappop", "heappush", "partial", "signal", "socket", "start_thread"]
