"""The code interpreter of E2B's clients, in the sandbox: contexts and executions over HTTP, on port 49999.

Nothing in it guards anything: it is reached by those whom the service lets in, and by the sandbox's own programs.
"""

from __future__ import annotations

import socket
import sys

PORT = 49999


def bind() -> socket.socket:
    """Listen at once: those who come while the rest is still imported wait in the queue. Raises OSError if it runs already."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", PORT))
    found.listen(128)
    found.setblocking(False)
    return found


if __name__ == "__main__":
    try:
        LISTENER = bind()
    except OSError as problem:
        sys.exit(f"port {PORT}: {problem.strerror}")

import asyncio  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from contexts import HOME, Context, Contexts, language_of, parse  # noqa: E402
from errors import KernelDiedError, RefusedError  # noqa: E402
from outputs import Outputs  # noqa: E402
from tornado.httpserver import HTTPServer  # noqa: E402
from tornado.iostream import StreamClosedError  # noqa: E402
from tornado.web import Application, RequestHandler  # noqa: E402

MOST_BODY_BYTES = 16 << 20
MOST_VARIABLES = 1000
# A connection whose client is gone shows that only when something is written to it.
KEEPALIVE_SECONDS = 5.0
FONTS = Path("/opt/gamebox-interpreter-fonts")
_KEEPALIVE = b'{"type": "keepalive"}\n'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Handler(RequestHandler):
    """A request; what is refused is answered with a sentence."""

    def initialize(self, contexts: Contexts) -> None:
        """See the base class."""
        self.contexts = contexts

    def body(self, *texts: str) -> dict[str, Any]:
        """Return the body. Raises RefusedError."""
        try:
            found = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise RefusedError(422, "The body is not JSON.") from None
        return parse(found, texts=texts)

    def write_error(self, status_code: int, **details: Any) -> None:
        """See the base class."""
        error = details.get("exc_info", (None, None, None))[1]
        sentence = str(error) if isinstance(error, RefusedError | KernelDiedError) else self._reason
        self.set_status(error.status if isinstance(error, RefusedError) else status_code)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(sentence)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """See the base class."""
        if not isinstance(value, RefusedError | KernelDiedError | StreamClosedError):
            super().log_exception(typ, value, tb)

    def reply(self, data: Any) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(data))


class Unknown(Handler):
    """Any other path."""

    def prepare(self) -> None:
        """See the base class."""
        raise RefusedError(404, f"The code interpreter has no {self.request.path[:200]}.")


class Health(Handler):
    """Whether it runs."""

    def get(self) -> None:
        """See the class."""
        self.reply("OK")


class Execute(Handler):
    """Run code, and stream what it puts out."""

    _running: asyncio.Task[None] | None = None

    async def post(self) -> None:
        """See the class."""
        body = self.body("code", "context_id", "language")
        context = self._context(body)
        context.check_room()
        env = body.get("env_vars") or {}
        if not isinstance(body.get("code"), str):
            raise RefusedError(422, "code is missing.")
        if not isinstance(env, dict) or len(env) > MOST_VARIABLES or not all(map(_is_variable, env.items())):
            raise RefusedError(422, f"env_vars does not map at most {MOST_VARIABLES} names to texts.")
        outputs = Outputs()
        self._running = asyncio.create_task(context.execute(body["code"], env, outputs))
        self.set_header("Content-Type", "application/json")
        try:
            await self.flush()
            await self._stream(outputs)
        except StreamClosedError:
            pass
        finally:
            self._running.cancel()

    def _context(self, body: dict[str, Any]) -> Context:
        if body.get("context_id") and body.get("language"):
            raise RefusedError(400, "Only one of context_id or language can be provided")
        if body.get("context_id"):
            return self.contexts.find(body["context_id"])
        return self.contexts.default(language_of(body.get("language")))

    async def _stream(self, outputs: Outputs) -> None:
        taking = asyncio.ensure_future(outputs.take())
        try:
            while True:
                await asyncio.wait([taking], timeout=KEEPALIVE_SECONDS)
                if not taking.done():
                    self.write(_KEEPALIVE)
                elif (lines := taking.result()) is None:
                    return
                else:
                    self.write(lines)
                    taking = asyncio.ensure_future(outputs.take())
                await self.flush()
        finally:
            taking.cancel()

    def on_connection_close(self) -> None:
        """Interrupt the execution: nobody waits for it any more."""
        if self._running is not None:
            self._running.cancel()


class AllContexts(Handler):
    """The contexts: list, create."""

    def get(self) -> None:
        """List them."""
        self.reply([each.data() for each in self.contexts.all()])

    async def post(self) -> None:
        """Create one."""
        body = self.body("cwd", "language")
        context = self.contexts.create(language_of(body.get("language")), body.get("cwd") or HOME)
        try:
            await context.ready()
        except KernelDiedError:
            await self.contexts.remove(context.id)
            raise
        self.reply(context.data())


class OneContext(Handler):
    """A context: remove."""

    async def delete(self, ident: str) -> None:
        """Remove it."""
        await self.contexts.remove(ident)
        self.reply(None)


class Restart(Handler):
    """A context: begin anew."""

    async def post(self, ident: str) -> None:
        """Restart it."""
        await self.contexts.find(ident).restart()
        self.reply(None)


def _is_variable(item: tuple[Any, Any]) -> bool:
    name, value = item
    return bool(_NAME.fullmatch(name)) and isinstance(value, str) and "\0" not in value


def copy_fonts() -> None:
    """Give matplotlib its list of fonts, which it would make anew for seconds: its own place in the image is read-only."""
    target = Path(os.environ.get("XDG_CACHE_HOME") or f"{HOME}/.cache") / "matplotlib"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in FONTS.glob("fontlist*.json"):
            if not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)
    except OSError as error:
        print(f"the list of fonts could not be copied: {error.strerror}", file=sys.stderr)


async def serve(listener: socket.socket) -> None:
    """Serve until the sandbox ends."""
    contexts = Contexts()
    given = {"contexts": contexts}
    app = Application(
        [
            ("/health", Health, given),
            ("/execute", Execute, given),
            ("/contexts", AllContexts, given),
            ("/contexts/([^/]+)", OneContext, given),
            ("/contexts/([^/]+)/restart", Restart, given),
        ],
        default_handler_class=Unknown,
        default_handler_args=given,
        log_function=lambda _: None,
    )
    server = HTTPServer(app, max_body_size=MOST_BODY_BYTES, max_buffer_size=MOST_BODY_BYTES + (1 << 20))
    server.add_socket(listener)
    copy_fonts()
    # The kernel that nearly every client asks for first; its context is there before any other.
    first = contexts.default("python")
    await asyncio.sleep(0.05)  # who waits already is answered before its libraries are imported
    warm = asyncio.create_task(first.ready())
    await asyncio.wait([warm])
    if (problem := warm.exception()) is not None:
        print(f"the first kernel: {problem}", file=sys.stderr)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(LISTENER))
