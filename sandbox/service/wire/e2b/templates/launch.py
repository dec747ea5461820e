"""What a template adds to a sandbox at its start: a command in the background, and another one that says when it is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import HostArguments
from sandbox.service.wire.e2b.envd.access import USER

# How often it is asked whether the sandbox is ready: soon first, and then as E2B does.
FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.1, 2.0
SHELL = ("/bin/sh", "-c", 'if command -v bash > /dev/null; then exec bash -l -c "$0"; fi; exec sh -l -c "$0"')
SHOWN_CHARS = 2000


async def launch(environment: AsyncEnvironment, asked: Mapping[str, Any], seconds: float) -> None:
    """Start the command of a template and wait until it is ready, at most so long. Raises SandboxError."""
    if start := asked.get("start"):
        args = {**_arguments(asked, str(start)), "timeout_seconds": "unlimited", "background": True}
        (await environment.execute("run", HostArguments(args))).unwrap()
    if ready := asked.get("ready"):
        await _wait(environment, asked, str(ready), seconds)


async def _wait(environment: AsyncEnvironment, asked: Mapping[str, Any], ready: str, seconds: float) -> None:
    until, wait, said = time.monotonic() + seconds, FIRST_WAIT_SECONDS, ""
    while (left := until - time.monotonic()) > 0:
        answer = await environment.execute("run", HostArguments({**_arguments(asked, ready), "timeout_seconds": max(left, 0.1)}))
        if answer.ok:
            if answer.unwrap().exit_code == 0:
                return
            said = answer.unwrap().to_text(SHOWN_CHARS)
        elif getattr(answer, "code", None) is not ErrorCode.timeout:
            answer.unwrap()
        await asyncio.sleep(min(wait, max(0.0, until - time.monotonic())))
        wait = min(wait * 2, MOST_WAIT_SECONDS)
    raise SandboxError(
        ErrorCode.start_failed,
        f"The ready command of the template, {ready[:200]!r}, did not exit with 0 within {seconds:g} s: {said or 'no output'}",
        "Try its start command in a sandbox of another template, and build this one again.",
    )


def _arguments(asked: Mapping[str, Any], command: str) -> dict[str, Any]:
    user = asked.get("user") or USER
    named = {} if user == USER else {"user": user}
    return {"argv": [*SHELL, command], "cwd": asked.get("workdir"), "session": None, **named}
