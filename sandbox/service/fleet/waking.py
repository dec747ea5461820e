"""Paused sandboxes that requests wake: once for all requests that wait, and not again at once if it fails."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sandbox.errors import SandboxError
from sandbox.service.http.bodies import UpdateSandbox
from sandbox.service.http.problems import Problem
from sandbox.service.store.tables.sandboxes import stopped_at

from .admission.workers import Workers
from .changes import Changes
from .live_sandbox import LiveSandbox

# Of the options of a sandbox: its time to live from the moment in which a request wakes it. Without it, none does.
OPTION = "wake_seconds"
# Everybody may send requests to a public port: after a failure, such as a full quota, theirs try it no more often than this.
AGAIN_SECONDS = 5.0


@dataclass(slots=True)
class _Waking:
    task: asyncio.Task[Exception | None] | None = None
    failed_at: float = float("-inf")


async def wake(workers: Workers, changes: Changes, live: LiveSandbox, *, by_port: bool = False) -> bool:
    """Have a paused sandbox go on, if its owner asked for that; return whether it was woken. Raises Problem, SandboxError.

    One that is stopped is not woken: it would start anew, and what the request is for would not run in it.
    """
    seconds = live.record.options.get(OPTION)
    if live.record.state != "paused" or not isinstance(seconds, int | float) or stopped_at(live.record.options) is not None:
        return False
    waking: _Waking = live.beside.setdefault(_Waking, _Waking())
    task = waking.task
    if task is None or (task.done() and not (by_port and time.monotonic() < waking.failed_at + AGAIN_SECONDS)):
        # It goes on when the one who asked first has left.
        task = waking.task = workers.spawn(_woken(changes, live, float(seconds), waking))
    if (error := await asyncio.shield(task)) is not None:
        raise error.with_traceback(None)
    return True


async def _woken(changes: Changes, live: LiveSandbox, seconds: float, waking: _Waking) -> Exception | None:
    try:
        await changes.resume(live)
        await changes.update(live, UpdateSandbox.model_validate({"time_to_live_seconds": seconds}))
    except (Problem, SandboxError) as error:
        waking.failed_at = time.monotonic()
        return error
    return None
