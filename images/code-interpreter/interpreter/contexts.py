"""Contexts: kernels with a name, each with one execution at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bash_shell import BashShell
from errors import KernelDiedError, RefusedError
from outputs import Outputs

if TYPE_CHECKING:
    from python_kernel import PythonKernel

HOME = os.environ.get("HOME", "/home/user")
MOST_CONTEXTS = 32
# Of one context, with the one that runs.
MOST_WAITING = 64
# For an execution to end after it was interrupted; then its kernel is killed.
GRACE_SECONDS = 8.0
LANGUAGES = ("python", "bash")
_ALIASES = {"python3": "python", "py": "python", "sh": "bash", "shell": "bash"}
# Such as clients know from E2B.
RESTARTED = "ContextRestarting"


def language_of(name: str | None) -> str:
    """Return a language by the name that a client gives it. Raises RefusedError."""
    given = (name or "python").lower()
    found = _ALIASES.get(given, given)
    if found not in LANGUAGES:
        raise RefusedError(400, f"The language {name!r:.40} is not supported: use python or bash.")
    return found


def _new_kernel(language: str, cwd: str) -> PythonKernel | BashShell:
    if language == "bash":
        return BashShell(cwd)
    # Its libraries take half of the time of a start, and the server answers before.
    from python_kernel import PythonKernel

    return PythonKernel(cwd)


class Context:
    """A kernel, which is started when it is needed, and again when it has died."""

    def __init__(self, language: str, cwd: str) -> None:
        self.id, self.language, self.cwd = str(uuid.uuid4()), language, cwd
        self._kernel: PythonKernel | BashShell | None = None
        self._turn = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._waiting = 0
        self._closed = False
        self._loss = ""

    def data(self) -> dict[str, str]:
        """Return what clients are told of it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def ready(self) -> PythonKernel | BashShell:
        """Return its kernel, which runs. Raises KernelDiedError."""
        async with self._starting:
            if self._closed:
                raise KernelDiedError("The context was removed.")
            if self._kernel is not None:
                if self._kernel.alive:
                    return self._kernel
                await self._stop()
                raise KernelDiedError("The kernel had ended before this code, which was not run.")
            kernel = _new_kernel(self.language, self.cwd)
            try:
                await kernel.start()
            except BaseException as error:
                await kernel.stop()
                if isinstance(error, OSError):
                    raise KernelDiedError(f"The kernel could not be started: {error.strerror}.") from error
                raise
            self._kernel = kernel
            return kernel

    def check_room(self) -> None:
        """Raise RefusedError if too many wait for it."""
        if self._waiting >= MOST_WAITING:
            raise RefusedError(429, f"{MOST_WAITING} executions wait for this context already: use another one.")

    async def execute(self, code: str, env: Mapping[str, str], outputs: Outputs) -> None:
        """Run code when it is its turn; cancelled, the kernel is interrupted. Closes ``outputs``."""
        self._waiting += 1
        try:
            async with self._turn:
                if self._loss:
                    outputs.error(RESTARTED, self._loss)
                    self._loss = ""
                    return
                await self._execute(code, dict(env), outputs)
        finally:
            self._waiting -= 1
            outputs.close()

    async def _execute(self, code: str, env: dict[str, str], outputs: Outputs) -> None:
        running: asyncio.Future[None] | None = None
        try:
            kernel = await self.ready()
            running = asyncio.ensure_future(kernel.run(code, env, outputs))
            await asyncio.shield(running)
        except KernelDiedError as error:
            async with self._starting:
                if self._kernel is not None and not self._kernel.alive:
                    await self._stop()
            lost = f"{error} Its variables are lost; the next execution has a new one."
            outputs.error(RESTARTED, "The context was removed." if self._closed else lost)
        except Exception as error:  # noqa: BLE001  # a bug of ours: whoever waits is told
            outputs.error("InternalError", f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            if running is not None:
                winding = asyncio.ensure_future(self._wind_down(kernel, running))
                while not winding.done():  # the turn is not given up before, however often it is cancelled
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.shield(winding)
            raise

    async def _wind_down(self, kernel: PythonKernel | BashShell, running: asyncio.Future[None]) -> None:
        for _ in range(2):
            kernel.interrupt()
            await asyncio.wait([running], timeout=GRACE_SECONDS / 2)
            if running.done():
                running.exception()
                return
        self._loss = (
            f"The execution before was interrupted, and did not end within {GRACE_SECONDS:.0f} s: its kernel was killed, and the "
            "variables are lost. This code was not run: send it again."
        )
        await self._stop()
        running.cancel()

    async def restart(self) -> None:
        """Begin anew, without variables. Raises KernelDiedError."""
        async with self._starting:
            await self._stop()
            self._loss = ""
        await self.ready()

    async def close(self) -> None:
        """End it. What waits for it is not run."""
        self._closed = True
        async with self._starting:
            await self._stop()

    async def _stop(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.stop()


class Contexts:
    """All contexts of the sandbox; ``default`` of a language is the one for requests that name none."""

    def __init__(self) -> None:
        self._by_id: dict[str, Context] = {}
        self._defaults: dict[str, str] = {}

    def all(self) -> list[Context]:
        """Return them, the oldest first."""
        return list(self._by_id.values())

    def default(self, language: str) -> Context:
        """Return the one that a language has without being asked for one. Raises RefusedError."""
        found = self._by_id.get(self._defaults.get(language, ""))
        if found is None:
            found = self.create(language, HOME)
            self._defaults[language] = found.id
        return found

    def create(self, language: str, cwd: str) -> Context:
        """Return a new one, whose kernel is not started yet. Raises RefusedError."""
        if len(self._by_id) >= MOST_CONTEXTS:
            raise RefusedError(429, f"There are {MOST_CONTEXTS} contexts, the most that a sandbox may have: remove one.")
        if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            raise RefusedError(400, f"The folder {cwd!r:.300} cannot be entered: give one that is there.")
        found = Context(language, cwd)
        self._by_id[found.id] = found
        return found

    def find(self, ident: str) -> Context:
        """Return one. Raises RefusedError."""
        if (found := self._by_id.get(ident)) is None:
            raise RefusedError(404, f"Context {ident[:80]} not found")
        return found

    async def remove(self, ident: str) -> None:
        """End one. Raises RefusedError."""
        found = self.find(ident)
        del self._by_id[ident]
        await found.close()


def parse(body: Any, *, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return a body whose ``texts`` are texts or missing. Raises RefusedError."""
    if not isinstance(body, dict):
        raise RefusedError(422, "The body is not a JSON object.")
    for name in texts:
        value = body.get(name)
        if value is not None and not (isinstance(value, str) and "\0" not in value):
            raise RefusedError(422, f"{name} is not a text, or has a NUL in it.")
    return body
