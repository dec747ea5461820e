"""What SWE-ReX calls a runtime: the sessions of one sandbox, its commands beside them, and what was answered last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import Response

from sandbox.envelope import Failure
from sandbox.operations import HostArguments
from sandbox.service.fleet.admission.workers import Workers
from sandbox.service.fleet.live_sandbox import LiveSandbox

from .models import CloseSession, CreateSession, Execute, SwerexError, error_of
from .shell import MOST_OUTPUT_BYTES, Shell

MOST_SESSIONS, MOST_UNDER_WAY = 16, 32
# An answer that is larger is not kept for a client that asks again.
KEPT_BYTES = 64 << 10


class Runtime:
    """The sessions of one sandbox. They end with it, and a service that restarts finds them again."""

    def __init__(self, live: LiveSandbox) -> None:
        self.live = live
        self._shells: dict[str, Shell | None] = {}  # None while it starts
        self._looking = asyncio.Lock()
        self._looked = False
        self._under_way: dict[object, asyncio.Task[Response]] = {}
        self._last: tuple[str, asyncio.Task[Response]] | None = None

    def once(
        self, ident: str | None, work: Callable[[], Coroutine[Any, Any, Response]], workers: Workers
    ) -> asyncio.Task[Response]:
        """Return the task that carries out the request with that id; it goes on if nobody waits for it."""
        if ident is not None and (known := self._under_way.get(ident)) is not None:
            return known
        if self._last is not None and ident == self._last[0]:
            return self._last[1]
        if len(self._under_way) >= MOST_UNDER_WAY:
            work = _too_many
        task = workers.spawn(work())
        key: object = ident if ident is not None else task
        self._under_way[key] = task

        def done(task: asyncio.Task[Response]) -> None:
            del self._under_way[key]
            if ident is not None and not task.cancelled() and task.exception() is None:
                self._last = (ident, task) if len(task.result().body) <= KEPT_BYTES else None

        task.add_done_callback(done)
        return task

    async def look(self) -> None:
        """Find the sessions that a service before this one has started, once. Raises SandboxError."""
        async with self._looking:
            if not self._looked:
                self._shells.update(await Shell.find(self.live))
                self._looked = True

    def shell(self, name: str) -> Shell:
        """Return a session. Raises SwerexError."""
        found = self._shells.get(name)
        if found is None:
            raise SwerexError(f"session {name!r} does not exist", "SessionDoesNotExistError")
        return found

    async def create_session(self, asked: CreateSession) -> dict[str, Any]:
        """Start a session. Raises SwerexError."""
        if asked.session in self._shells:
            raise SwerexError(f"session {asked.session} already exists", "SessionExistsError")
        if len(self._shells) >= MOST_SESSIONS:
            raise SwerexError(f"A sandbox has at most {MOST_SESSIONS} sessions: close one.", "RuntimeError")
        self._shells[asked.session] = None
        try:
            self._shells[asked.session], output = await Shell.start(self.live, asked)
        except BaseException:
            del self._shells[asked.session]
            raise
        return {"output": output, "session_type": "bash"}

    async def close_session(self, asked: CloseSession) -> dict[str, Any]:
        """End a session. Raises SwerexError."""
        shell = self.shell(asked.session)
        del self._shells[asked.session]
        await shell.close()
        return {"session_type": "bash"}

    async def close(self) -> dict[str, Any]:
        """End all sessions."""
        shells = [each for each in self._shells.values() if each is not None]
        self._shells = {name: each for name, each in self._shells.items() if each is None}
        await asyncio.gather(*(each.close() for each in shells))
        return {}

    async def execute(self, asked: Execute) -> dict[str, Any]:
        """Carry out a command beside all sessions. Raises SwerexError."""
        environment = await self.live.ready()
        words = [asked.command] if isinstance(asked.command, str) else list(asked.command)
        seconds = environment.environment.limits.max_timeout_seconds  # type: ignore[attr-defined]  # the fleet makes no other
        args = HostArguments(
            argv=["/bin/sh", "-c", *words] if asked.shell else words,
            env=asked.env,
            cwd=asked.cwd,
            session=None,
            timeout_seconds=asked.timeout or seconds,
            keep_output_bytes=MOST_OUTPUT_BYTES,
        )
        answer = await environment.execute("run", args)
        if isinstance(answer, Failure):
            raise error_of(answer)
        result = answer.unwrap()
        status = result.exit_code if result.exit_code is not None else 128 - (result.shell_status or 0)
        stdout, stderr = (result.output, "") if asked.merge_output_streams else (result.stdout, result.stderr)
        if asked.check and status != 0:
            said = f"Command {asked.command!r} failed with exit code {status}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            raise SwerexError(f"{asked.error_msg}: {said}" if asked.error_msg else said, "NonZeroExitCodeError")
        return {"stdout": stdout, "stderr": stderr, "exit_code": status}


async def _too_many() -> Response:
    raise SwerexError(f"{MOST_UNDER_WAY} requests are under way in this sandbox: wait for one of them.", "RuntimeError")
