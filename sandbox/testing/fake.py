"""FakeEnvironment: a sandbox whose commands are a test's table, for tests of agents and tools without an engine."""

from __future__ import annotations

import contextlib
import os
import posixpath
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from sandbox import operations as op
from sandbox.backend import Description, GuestStream, StartRequest
from sandbox.envelope import Envelope
from sandbox.environment.base import Approver
from sandbox.environment.call_errors import check_request
from sandbox.environment.parts.description import COMMANDS
from sandbox.environment.sandboxed import START_SECONDS, SandboxedEnvironment
from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol.constants import REFUSED
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.protocol.page_urls import is_loopback, normalize_url
from sandbox.limits import Limits
from sandbox.local import LocalBackend
from sandbox.network.policy import Network, judge_host
from sandbox.pipe.forked_processes import forked_since
from sandbox.pipe.pending_request import Sink
from sandbox.pipe.stdin import pieces
from sandbox.pipe.transport import Transport
from sandbox.pipe.watching import Watch

from .commands import HOME, SPILL, WORKSPACE, Commands, Table

TMP = "/tmp"  # noqa: S108  (the fake sandbox's own)
# What the guest does for real; it is not asked for anything else.
_ON_FILES = frozenset(
    {
        *("read", "write", "edit", "list", "stat", "search", "make_dir", "move", "delete", "upload", "download"),
        *("scan", "fetch", "restore", "last_changes"),
    }
)
_FROM_THE_TABLE = frozenset({"kill", "end_session", "open_session", "sessions", "processes"})
# How many replies are remembered by the id of their request, as in a real sandbox.
_MOST_REPLIES = 256
# Arguments that are paths in the sandbox.
_PATHS = ("path", "source", "target", "cwd", "file")


class FakeEnvironment(SandboxedEnvironment):
    """An environment with files in a temporary folder and commands answered from ``commands``; ready without ``start()``.

    ``files`` maps paths to contents (text or bytes). ``commands`` maps exact commands, or compiled patterns that match a whole
    command, to what they print (text or bytes), to a ``Ran``, to a mapping of its fields, or to a callable that takes the
    ``FakeRun`` and returns one of these. It may also be one callable for all commands, which returns None for those it does not
    know. An unknown command is the failure ``operation_not_supported``. ``pages`` maps addresses to texts for ``browse``.
    ``network`` is a policy to read and change; it decides what ``browse`` refuses, but there are no connections.

    Everything else is real: operations on files are carried out by the guest that serves real sandboxes. It is a child process,
    which starts with the first of them, or at once if there are ``files``, and ends with the environment. ``requests`` lists
    every valid request so far, for assertions. ``lose()`` makes the environment unavailable.
    """

    def __init__(
        self,
        files: Mapping[str, str | bytes] | None = None,
        commands: Table | None = None,
        *,
        pages: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        approver: Approver | None = None,
    ) -> None:
        contents = {path: text.encode() if isinstance(text, str) else text for path, text in (files or {}).items()}
        self._fake = FakeBackend(contents, limits or Limits())
        super().__init__(self._fake, limits=limits, network=network, approver=approver)
        self.requests: list[op.Request] = []
        self._was_started = False
        self._files_at_end: dict[str, bytes] = {}
        self._scripted = ScriptedTransport(
            lambda: self._fake.reach(self._hello),
            commands or {},
            dict(pages or {}),
            self.requests,
            asdict(self.limits),
            lambda: self.network,
        )
        weakref.finalize(self, _end, self._fake, os.getpid())  # of an environment that nobody closed
        super().start()

    def start(self) -> Self:
        """Mark the environment as started, for its repr only: it is ready from the beginning."""
        self._was_started = True
        return super().start()

    def close(self, *, wait: bool = False) -> None:
        """End the environment; may be called more than once. ``files`` stays as it is now."""
        if not forked_since(self._pid):
            with contextlib.suppress(OSError):  # a file without the right to read it
                self._files_at_end = self.files
        super().close(wait=wait)

    def _summary(self) -> tuple[str, ...]:
        found = super()._summary()
        return found if self._was_started or found != ("running",) else ("not started",)

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of all files now by path, which is relative in the workspace and else absolute."""
        return self._fake.files() or self._files_at_end

    def lose(self, reason: str = "killed", message: str = "The sandbox's container was killed from outside.") -> None:
        """Have every further operation fail as if the sandbox had ended for ``reason``."""
        self._scripted.lost = SandboxUnavailableError(
            reason, message, "Start another sandbox; files in this one are lost."
        )

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        check_request(request, watch)
        self.requests.append(request)
        return super().perform(request, watch)

    def _connect(self) -> Transport:
        return self._scripted

    def _hello(self, opened: GuestStream, *, stands_by: bool = False) -> dict[str, Any]:
        """See the base class. No time passes for a fake sandbox, so none of it ends its guest."""
        hello = super()._hello(opened, stands_by=stands_by)
        limits = {**hello["place"]["limits"], "lifetime_seconds": None, "idle_seconds": None}
        return {**hello, "place": {**hello["place"], "limits": limits}}

    def _starts_empty(self) -> bool:
        return not self._fake.contents


def _end(backend: FakeBackend, pid: int) -> None:
    """End the guest and remove its folder. Joins no thread: the garbage collector may call this amid any other work."""
    if not forked_since(pid):
        LocalBackend.close(backend, detach=False)


class FakeBackend(LocalBackend):
    """Starts the guest in a temporary folder that holds ``contents``, with the paths of a container for its folders."""

    def __init__(self, contents: Mapping[str, bytes], limits: Limits) -> None:
        super().__init__(None, replace(limits, disk="auto"), {})  # a promise of the disk is not tried here
        self.contents = contents
        self._guest: Transport | None = None
        self._starting = threading.Lock()
        self._folders: dict[str, Path] = {}

    def reach(self, hello: Callable[[GuestStream], dict[str, Any]]) -> Transport:
        """Return the pipe to the guest, which is started for the first call. Raises SandboxError."""
        with self._starting:
            if self._guest is None:
                try:
                    opened = self.open(StartRequest(Network.none(), lambda: False))
                    guest = Transport(opened.stream, self.explain)
                    guest.open(hello(opened), START_SECONDS)
                except BaseException:  # a Ctrl-C, too
                    super().close(detach=False)
                    raise
                self._guest = guest
            return self._guest

    def open(self, request: StartRequest) -> GuestStream:
        opened = super().open(request)
        place = dict(opened.place or {})
        workspace, home, spill, tmp = map(Path, place["roots"])
        self._folders = {WORKSPACE: workspace, HOME: home, TMP: tmp, SPILL: spill}  # in the order of a container
        for path, content in self.contents.items():
            self._write(path, content)
        # no programs: what a search finds must not depend on whether this machine has ripgrep
        place["environ"] = {**place["environ"], "PATH": os.devnull}
        roots = [str(folder) for folder in self._folders.values()]
        return replace(opened, place={**place, "roots": roots, "root_names": list(self._folders)})

    def _write(self, path: str, content: bytes) -> None:
        absolute = posixpath.normpath(posixpath.join(WORKSPACE, path))
        for name, folder in self._folders.items():
            if absolute.startswith(f"{name}/"):
                file = folder / absolute[len(name) + 1 :]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(0o644)
                return
        raise ValueError(f"{path!r} is outside of {', '.join(self._folders)}")

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files by path; {} before the start and after the end."""
        return {
            (name + str(file)[len(str(folder)) :]).removeprefix(f"{WORKSPACE}/"): file.read_bytes()
            for name, folder in self._folders.items()
            for file in sorted(folder.rglob("*"))
            if file.is_file() and not file.is_symlink()
        }

    def close(self, *, detach: bool) -> None:
        with self._starting:
            guest, self._guest = self._guest, None
            if guest is not None:
                guest.close()
            super().close(detach=detach)
            self._folders = {}

    def freeze(self) -> None:
        """Do nothing: no process runs."""

    def describe(self) -> Description:
        kind = "A fake sandbox: only the commands its test knows can be run."
        return Description(sandbox=f"{kind} {COMMANDS}")


class ScriptedTransport(Transport):
    """Has operations on files carried out by the guest, which ``reach`` returns, and answers all others itself."""

    def __init__(
        self,
        reach: Callable[[], Transport],
        table: Table,
        pages: dict[str, str],
        requests: list[op.Request],
        limits: dict[str, Any],
        network: Callable[[], Network],
    ) -> None:
        self.lost: SandboxUnavailableError | None = None
        self._reach, self._pages, self._requests, self._network = reach, pages, requests, network
        self._commands = Commands(table, self._ask, limits)
        self._once = threading.RLock()
        self._remembered: dict[str, tuple[Any, tuple[dict[str, Any], bytes]]] = {}
        self._dropped: set[str] = set()

    @property
    def loss(self) -> SandboxUnavailableError | None:
        return self.lost

    connected = False  # a guest that runs no commands need not know that it is resumed

    def close(self, *, detach: bool = False) -> None:
        """Do nothing: the backend ends the guest."""

    def pause_deadlines(self) -> None:
        """Do nothing: operations on files end at once."""

    def resume_deadlines(self) -> None:
        """Do nothing: operations on files end at once."""

    def request(
        self,
        operation: str,
        args: dict[str, Any],
        *,
        blob: bytes = b"",
        body: Iterable[bytes] | None = None,
        feed: Any = None,
        sink: Sink | None = None,
        watch: Watch | None = None,
        request_id: str | None = None,
        **call: Any,
    ) -> tuple[dict[str, Any], bytes]:
        """See ``Transport.request``."""
        if self.lost is not None:
            raise self.lost
        if operation in op.OPERATIONS and (body is not None or sink is not None):
            self._requests.append(op.OPERATIONS[operation].model_validate(args))
        args = {name: _at_home(value) if name in _PATHS else value for name, value in args.items()}
        if feed is not None:
            blob = b"".join(pieces(feed))

        def answer() -> tuple[dict[str, Any], bytes]:
            if operation not in _ON_FILES:
                return self._answer(operation, args, blob, watch)
            reply = self._reach().request(operation, args, blob=blob, body=body, sink=sink, **call)
            return _as_the_user(reply) if operation == "stat" else reply

        return answer() if request_id is None else self._answer_once(request_id, (operation, args, blob), answer)

    def _answer_once(
        self, ident: str, asked: tuple[Any, ...], answer: Callable[[], tuple[dict[str, Any], bytes]]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the remembered reply to ``ident``, or else that of ``answer``. One request with an id at a time."""
        with self._once:
            if ident in self._dropped:
                return {"fault": _packed(Fault("transfer_incomplete", effects="unknown", answer_dropped=True))}, b""
            if ident not in self._remembered:
                self._remembered[ident] = (asked, answer())
                for oldest in list(self._remembered)[:-_MOST_REPLIES]:
                    del self._remembered[oldest]
                    self._dropped.add(oldest)
            known, reply = self._remembered[ident]
        if known != asked:
            problem = f"request_id {ident[:80]!r} was given to another request"
            return {"fault": _packed(Fault("invalid_arguments", problem=problem))}, b""
        return reply

    def _ask(
        self, operation: str, args: dict[str, Any], body: Iterable[bytes] | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Return the result of an operation on files and what it streams back. Raises Fault."""
        received: list[bytes | memoryview] = []
        streams = received.append if operation == "download" else None
        fields, _ = self._reach().request(operation, args, timeout_seconds=START_SECONDS, body=body, sink=streams)
        if fault := fields.get("fault"):
            raise Fault(fault["code"], effects=fault["effects"], **fault["fields"])
        return fields["result"], b"".join(received)

    def _answer(
        self, operation: str, args: dict[str, Any], blob: bytes, watch: Watch | None
    ) -> tuple[dict[str, Any], bytes]:
        try:
            fields, data = self._handle(operation, args, blob)
        except Fault as fault:
            fields, data = {"fault": fault}, b""
        if watch is not None and "segments" in fields:
            _pass_output(watch, fields["segments"], data)
        failure = fields.get("fault")
        if isinstance(failure, Fault):
            fields["fault"] = _packed(failure)
            fields["result"] = fields.get("result") or failure.result
        return fields, data

    def _handle(self, operation: str, args: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        if operation == "run":
            return self._commands.run(args, blob)
        if operation == "wait_for":
            return self._commands.wait_for(args)
        if operation in ("send", "resize", "screen"):
            raise self._commands.unable(operation, args["id"])
        data = b""
        if operation == "logs":
            fields, data = self._commands.logs(args)
        elif operation == "usage":
            fields = {"running": self._commands.running()}
        elif operation == "browse":
            fields = self._browse(args)
        elif operation in _FROM_THE_TABLE:
            fields = getattr(self._commands, operation)(args)
        else:
            raise NotImplementedError(operation)
        return {"result": fields}, data

    def _browse(self, args: dict[str, Any]) -> dict[str, Any]:
        url, start = args["url"], args["offset"]
        try:
            normalize_url(url)
        except ValueError as error:
            raise Fault("invalid_url", url=url, problem=str(error)) from None
        text = self._pages.get(url)
        if text is None:
            raise self._unknown_page(url)
        part = text[start : start + args["max_chars"]]
        return {
            "url": url,
            "final_url": url,
            "status": 200,
            "content_type": "text/plain",
            "text": part,
            "offset": start,
            "total_chars": len(text),
            "size_bytes": len(text.encode()),
            "truncated": start + len(part) < len(text),
        }

    def _unknown_page(self, url: str) -> Fault:
        """Return the fault for a page that is not in ``pages``: refused by the rules, or not reachable."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        verdict, is_own = judge_host(self._network(), host, port), is_loopback(host)
        if is_own or verdict.allowed:
            own: dict[str, Any] = {"own": True, "port": port} if is_own else {}
            return Fault("connection_failed", url=url, problem=os.strerror(111), **own)
        problem = f"{host}:{port}{REFUSED}{verdict.why}"
        return Fault("network_denied", url=url, problem=problem)


def _at_home(value: Any) -> Any:
    """Return a path with the home in the place of "~", as the guest does for a home that has its own name."""
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return HOME + value[1:]
    return value


def _as_the_user(reply: tuple[dict[str, Any], bytes]) -> tuple[dict[str, Any], bytes]:
    """Return the reply to ``stat`` with the container's user in the place of the one who runs the test."""
    result = reply[0].get("result")
    if isinstance(result, dict) and result.get("uid") == os.getuid():
        result.update(uid=1000, gid=1000, owner="agent")
    return reply


def _packed(fault: Fault) -> dict[str, Any]:
    """Return a fault in the form in which the guest sends it."""
    return {"code": fault.code, "effects": fault.effects, "fields": fault.fields}


def _pass_output(watch: Watch, segments: list[list[int]], data: bytes) -> None:
    """Pass to ``watch`` what the command printed, as far as it was kept."""
    at = 0
    for stream, length, _part in segments:
        watch.take(bytes((stream,)) + data[at : at + length])
        at += length
