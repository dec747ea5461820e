"""Write down each entry into a file of ``sandbox``: time, process, thread, file, function.

It runs in the guest as well, so it uses the standard library only.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class Tracer:
    """Append a line to ``path`` for each call that enters a file below ``root`` while no frame of that file is on the stack."""

    def __init__(self, path: str, root: str) -> None:
        self._path, self._root = path, root
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def install(self) -> None:
        """Trace this thread and all that are started later; forked processes go on with it."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def install_in_guest(self) -> None:
        """Do the same in a guest that was not imported yet: it starts threads without ``threading``."""
        start = _thread.start_new_thread

        def begin(work: Callable[..., None], args: tuple[Any, ...]) -> None:
            sys.setprofile(self._on_event)
            work(*args)

        _thread.start_new_thread = lambda work, args: start(begin, (work, args))  # type: ignore[assignment]
        self.install()

    def remove(self) -> None:
        """Trace this thread no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(self._root):
            return
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_filename == name:
                return
            caller = caller.f_back
        function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name).split(".<locals>")[0]
        where = f"{time.monotonic_ns()} {os.getpid()} {threading.get_native_id()} {name[len(self._root):]} {function}\n".encode()
        try:
            os.write(self._fd, where)
        except OSError:  # a process that was just forked closes what it does not know
            self._open()
            os.write(self._fd, where)
