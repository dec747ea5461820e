"""The process of the command ``gamebox``, from its start to its end.

A short command would spend a quarter of its processor time on looking for garbage and on freeing everything at its end.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import Any


def main() -> Any:
    """Run the command line that this process is for, and leave without taking apart what Python has made for it."""
    gc.set_threshold(200_000)  # more than a short command makes, and set before its modules are loaded
    ending = _Ending()
    # Functions that are registered later are called before it; one that was registered earlier must not be left out.
    ending.is_last = getattr(atexit, "_ncallbacks", lambda: 1)() == 0
    atexit.register(ending.leave)
    try:
        from .app import command_line

        return command_line(None)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            ending.status = leaving.code or 0
        raise
    finally:
        ignore_interrupts()


# Python keeps the frames of calls in pieces of 16 KiB. A call for which the piece has no room maps the next one, and unmaps it
# as it returns: the imports of `gamebox run`, which nest deeply, do that 600 times. A frame of 20,000 slots gets a piece of
# 256 KiB, of which 96 are left for the calls below it.
main.__code__ = main.__code__.replace(co_stacksize=20_000)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from here on: it would break off, with a traceback, what is put away at the end of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Ending:
    """The end of this process. ``status`` is what it exits with, None as long as Python has to find that out."""

    status: int | None = None
    is_last = False  # nothing else is to be done at the end

    def leave(self) -> None:
        """Exit now if the status is known and everything is written; else the interpreter goes on with its own end."""
        if self.status is None or not self.is_last:
            gc.freeze()
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            return
        os._exit(self.status & 0xFF)
