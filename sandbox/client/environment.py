"""RemoteEnvironment: a sandbox of a service, used like one on this host."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from sandbox import operations as op
from sandbox.argument_types import HOST_PATH, check_types, check_variables
from sandbox.docker.spec import DEFAULT_IMAGE, SandboxSpec
from sandbox.envelope import Envelope, Success
from sandbox.environment.base import Approver, Environment
from sandbox.environment.call_errors import check_request
from sandbox.environment.host_actions import hear
from sandbox.environment.parts.guest_operations import watch_of
from sandbox.environment.parts.network import check_network
from sandbox.environment.sandboxed import checked_folders
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.operations.wire import read_envelope, request_data
from sandbox.pipe import forked_processes as forks
from sandbox.pipe.watching import Watch
from sandbox.transfers.copying import Incoming, outgoing

from .asking import BYTES_TOO, INLINE_STDIN_BYTES, Asked, ident_of, new_ident
from .creating import START_SECONDS, Creation
from .http.codes import ProblemCode
from .http.service import Call, Service, nonsense
from .initial_files import certificates, checked_workspace
from .network.connections import Connections
from .network.remote_network import RemoteNetwork, network_data
from .network.tunnels import Tunnels
from .state import RemoteState
from .terminal import RemoteTerminal
from .time_to_live import TimeToLive
from .transfers import download, fetch, send, upload

log = logging.getLogger(__name__)

# A prompt is not kept waiting for the description of the sandbox.
LOOK_SECONDS = 2.0
CLOSE_SECONDS = 10.0
# Sections of a description after that on secrets.
_LAST = ("limits", "left")
# Where the workspace is in every container; its module loads docker-py.
WORKSPACE = "/workspace"


class RemoteEnvironment(RemoteState, RemoteNetwork, Environment):
    """A sandbox of the service at ``url``; use it as a context manager, or ``start()`` and ``close()``.

    ``url`` and ``api_key`` are those of GAMEBOX_URL and GAMEBOX_API_KEY unless they are given. ``ca_file``, or GAMEBOX_CA_FILE, has
    authorities by which the certificate of the service is trusted, too. The other options are those of ``DockerEnvironment``;
    ``workspace`` and ``ca_bundle`` are read here and uploaded. The service decides what of them it allows.
    ``metadata`` are texts to find the sandbox by. ``secrets`` and ``services`` name secrets that the service keeps, and
    ``cache`` asks for its package cache (docs/http.md).

    ``close`` deletes the sandbox, or leaves it running with ``keep``; ``attach`` finds it by its id. The service ends it
    ``time_to_live_seconds`` after its start, or after ``idle_seconds`` without work, also if this process is gone; unless these
    are given, after an hour or 15 minutes. With ``renew``, the default for an hour that nobody asked for, the time to live begins
    anew while the sandbox is used. May be used by many threads at once. Raises SandboxError.
    """

    def __init__(
        self,
        image: str = DEFAULT_IMAGE,
        workspace: str | os.PathLike[str] | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        env: Mapping[str, str] | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        approver: Approver | None = None,
        profile: str = "default",
        track_changes: bool = True,
        read_roots: Sequence[str] = (),
        keep: bool = False,
        time_to_live_seconds: float | None = None,
        idle_seconds: float | None = None,
        renew: bool | None = None,
        metadata: Mapping[str, str] | None = None,
        secrets: Mapping[str, str | Mapping[str, Any]] | None = None,
        services: Sequence[Mapping[str, Any]] = (),
        cache: bool = False,
    ) -> None:
        super().__init__(approver)
        check_types(
            "RemoteEnvironment",
            image=(image, str),
            workspace=(workspace, HOST_PATH | None),
            ca_file=(ca_file, HOST_PATH | None),
            ca_bundle=(ca_bundle, HOST_PATH | None),
            profile=(profile, str),
            keep=(keep, bool),
            time_to_live_seconds=(time_to_live_seconds, int | float | None),
            idle_seconds=(idle_seconds, int | float | None),
        )
        check_variables("RemoteEnvironment", env or {})
        self.service = Service(url, api_key, ca_file)
        self.image, self.profile, self.keep = image, profile, keep
        self.limits = limits or Limits()
        self.track_changes = track_changes
        self.internal_commands: set[str] = set()
        self._policy = Network.none() if network is None else check_network(network)
        self._workspace = None if workspace is None else checked_workspace(Path(workspace))
        variables: dict[str, str] = {}
        self._certificates: dict[str, bytes] = {}
        if ca_bundle is not None:
            variables, self._certificates = certificates(Path(ca_bundle), profile)
        variables |= env or {}
        spec = SandboxSpec(
            image=image,
            limits=self.limits,
            network=self._policy,
            profile=profile,
            track_changes=track_changes,
            read_roots=checked_folders(read_roots),
        )
        self._body: dict[str, Any] = {
            **spec.to_data(),
            **({"env": variables} if variables else {}),
            **({"metadata": dict(metadata)} if metadata else {}),
            **({} if time_to_live_seconds is None else {"time_to_live_seconds": time_to_live_seconds}),
            **({} if idle_seconds is None else {"idle_seconds": idle_seconds}),
            **({"secrets": dict(secrets)} if secrets else {}),
            **({"services": [dict(each) for each in services]} if services else {}),
            **({"cache": True} if cache else {}),
        }
        # Names of secrets that the service gives to commands; it knows their values.
        self._kept_secrets: frozenset[str] = frozenset()
        self._pid = os.getpid()
        self._starting = threading.RLock()
        self._changing = threading.RLock()
        self._ending = threading.RLock()
        self._terminals: weakref.WeakSet[RemoteTerminal] = weakref.WeakSet()
        self._tunnels = Tunnels(self.service, self._path)
        self._connections = Connections(self.service, self._path_in_use, lambda text: self.hidden.mask.names(text))
        self._start_error: SandboxError | None = None
        self._id: str | None = None
        self._closed = self._deleted = self._creating = False
        # An hour that nobody asked for is renewed, so that no long run of an agent ends with it.
        self.life = TimeToLive(renews=time_to_live_seconds is None if renew is None else renew)
        self._description: dict[str, str] = {}

    @classmethod
    def attach(
        cls,
        id: str,  # noqa: A002
        *,
        url: str | None = None,
        api_key: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        approver: Approver | None = None,
        renew: bool = False,
    ) -> Self:
        """Return an environment of a sandbox that runs on the service, started; ``close`` leaves it running.

        With ``renew`` its time to live begins anew while it is used here. Raises SandboxError ``sandbox_not_found``.
        """
        env = cls(url=url, api_key=api_key, ca_file=ca_file, approver=approver, keep=True, renew=renew)
        try:
            env._take(env.service.json(Call("GET", _path_of(id), repeatable=True)))
        except BaseException:
            env.service.close()
            raise
        return env

    @property
    def id(self) -> str:
        """The id of the sandbox on the service. Raises SandboxError before the start."""
        if self._id is None:
            raise _not_started()
        return self._id

    # Start and end

    def start(self) -> Self:
        """Start the sandbox; does nothing when it is started. Raises SandboxError; nothing is left behind then."""
        forks.check(self._pid)
        with self._starting:
            if self._start_error is not None:
                raise self._start_error
            if self._id is None or self._closed:
                try:
                    self._start()
                except SandboxError as error:
                    self._start_error = error
                    raise
        return self

    def _start(self) -> None:
        if self._closed:
            raise _closed()
        keep, self.keep = self.keep, False  # one that is to be kept is not left by a start that failed
        try:
            self._take(self._created())
            self._connections.begin(0)
            self._fill()
            if self._closed:
                raise _closed()
        except BaseException:
            self.close()
            raise
        self.keep = keep

    def _created(self) -> Any:
        """Return what the service says of a new sandbox."""
        self._creating = True  # a thread that closes this does not cut the answer off, without which nobody could delete it
        try:
            return Creation(self.service, "/v1/sandboxes", self._body).carry_out()
        finally:
            self._creating = False

    def _take(self, found: Any) -> None:
        """Use the sandbox that the service has described."""
        try:
            self._id, self.image = str(found["id"]), str(found["image"])
            self.limits = Limits(**found["limits"])
            self._policy = SandboxSpec.from_data({"network": found["network"]}).network
            self._description = {str(name): str(text) for name, text in (found["description"] or {}).items()}
            self._kept_secrets = frozenset(found.get("secrets", {}))
            self.life.note(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise nonsense(self.service, "/v1/sandboxes") from error

    def _fill(self) -> None:
        """Copy in what the sandbox starts with. Raises SandboxError."""
        for path, data in self._certificates.items():
            self.upload(data, path).unwrap()
        if self._workspace is not None:
            self._upload(self._workspace, WORKSPACE, initial=True).unwrap()

    def close(self, *, wait: bool = False) -> None:  # noqa: ARG002
        """Delete the sandbox and everything in it, or leave a kept one running; may be called more than once.

        A service that cannot be reached ends it when its time is over; that is logged. Does nothing in a process that was forked
        from the one that made the environment.
        """
        self._end(delete=not self.keep)

    def remove(self) -> None:
        """Delete the sandbox and everything in it, also a kept one; may be called more than once. Raises SandboxError."""
        if error := self._end(delete=True):
            raise error

    def _end(self, *, delete: bool) -> SandboxError | None:
        if forks.forked_since(self._pid):
            return None
        self._closed = True
        with self._ending:  # a second thread waits until the first has ended it
            self._connections.end()
            self._tunnels.close()
            ident, error = self._id, None
            if ident is not None and delete and not self._deleted:
                try:
                    self.service.reopen()  # one that was kept may be deleted after its end here
                    call = Call("DELETE", _path_of(ident), read_seconds=START_SECONDS, repeatable=True)
                    self.service.request(replace(call, patience_seconds=CLOSE_SECONDS))
                    self._deleted = True
                except SandboxError as raised:
                    self._deleted = raised.code is ErrorCode.sandbox_not_found
                    if not self._deleted:
                        log.warning("the sandbox %s was not deleted: %s", ident, raised)
                        error = raised
            for each in list(self._terminals):
                each.end()
            if not self._creating:
                self.service.close()
            return error

    def _path(self) -> str:
        """Return the address of a sandbox that is in use. Raises SandboxError."""
        forks.check(self._pid)
        if self._closed:
            raise _closed()
        if self._id is None:
            raise _not_started()
        return _path_of(self._id)

    def _path_in_use(self) -> str | None:
        """Return the address of the sandbox, or None if it is not in use."""
        return None if self._id is None or self._closed else _path_of(self._id)

    def _summary(self) -> tuple[str, ...]:
        return self.image, "at", self.service.url, "closed" if self._closed else self._id or "not started"

    # Pause and time

    def pause(self) -> None:
        """Stop every process in the sandbox until ``resume``; does nothing when it is paused. Raises SandboxError."""
        self._change("POST", "/pause")

    def resume(self) -> None:
        """Let the sandbox go on; does nothing when it is not paused. Raises SandboxError."""
        self._change("POST", "/resume")

    def update(self, *, time_to_live_seconds: float | None = None, metadata: Mapping[str, str] | None = None) -> None:
        """Have the sandbox live for that long from now on, or replace its metadata. Raises SandboxError."""
        changes = {"time_to_live_seconds": time_to_live_seconds, "metadata": None if metadata is None else dict(metadata)}
        self._change("PATCH", "", {name: value for name, value in changes.items() if value is not None})

    def renew(self) -> None:
        """Have the time to live begin anew if it is to; a service that refuses ends the sandbox."""
        if self.life.is_to_renew:
            with suppress(SandboxError):
                self.update(time_to_live_seconds=self.life.begin())

    def _change(self, method: str, place: str, body: Mapping[str, Any] | None = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        self.service.request(Call(method, self._path() + place, data, repeatable=True))

    def _change_network(self, network: Network) -> None:
        if self._id is None and not self._closed:
            self._body["network"] = network_data(network)
        else:
            self._change("PATCH", "", {"network": network_data(network)})

    # Operations

    def secret(self, name: str, value: str, *, always: bool = True) -> None:
        """See ``Environment.secret``. It is sent with each command that gets it, and masked here; the service does not keep it."""
        self.hidden.add(name, value, always)

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        asked = self.asked(request, watch)
        self.renew()
        with self.explaining():
            return self.with_owed(asked.carry_out())

    def asked(self, request: op.Request, watch: Watch | None) -> Asked:
        """Return the request as it is sent. Raises SandboxError, and TypeError for what is not a request."""
        check_request(request, watch)
        path = self._path()
        request = self._with_variables(request)
        prepared = request.prepare(self.limits)
        source = prepared.source
        if len(prepared.stdin) > INLINE_STDIN_BYTES and not getattr(request, "background", False):
            source = prepared.stdin
        if (watch := watch_of(request, prepared, watch)) is not None:
            watch = watch.masked(self.hidden.mask) if self.hidden else watch
            source = request.reading_from(prepared, watch.stdin).source if watch.stdin is not None else source
        if source is not None:
            request = request.model_copy(update={"stdin": None})
        return Asked(self.service, path, request, prepared, watch, source, ident_of(request))

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise, for an error of the service in the block, what it means for this sandbox."""
        try:
            yield
        except SandboxError as error:
            raise self._explained(error) from error

    def _with_variables(self, request: op.Request) -> op.Request:
        """Give a command the secrets that it gets by itself or has asked for, unless it sets these variables itself."""
        if not isinstance(request, op.Run):
            return request
        kept = [name for name in request.secrets or () if name in self._kept_secrets]
        variables = self.hidden.variables([name for name in request.secrets or () if name not in kept])
        if not variables and not request.secrets:
            return request
        return request.model_copy(update={"env": {**variables, **(request.env or {})}, "secrets": tuple(kept) or None})

    def _explained(self, error: SandboxError) -> SandboxError:
        """Return the error to raise: of a sandbox that is gone, or of what the caller did."""
        if error.code is ErrorCode.sandbox_not_found:
            message = f"The service no longer has the sandbox {self._id}: it was deleted, or its time to live is over."
            return SandboxUnavailableError("closed" if self._closed else "removed", message, "Start another one.")
        if error.code is ProblemCode.request_id_reused:
            error.code = ErrorCode.invalid_arguments
        return error

    def with_owed(self, answer: Envelope[Any]) -> Envelope[Any]:
        """Return the answer with the notices that no answer has carried yet."""
        hear(answer.notices)
        owed = self._owed_notices()
        return replace(answer, notices=(*owed, *answer.notices)) if owed else answer

    def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, *, mode: int | None = None
    ) -> Envelope[op.UploadResult]:
        """See ``OperationMethods.upload``; ``mode`` is the file's, where it should not be the host file's own."""
        data = (data_or_path, bytes | bytearray | memoryview | HOST_PATH)
        check_types("upload", data_or_path=data, path=(path, str), mode=(mode, int | None))
        return self._upload(data_or_path, path, mode=mode)

    def _upload(
        self,
        data_or_path: bytes | str | os.PathLike[str],
        path: str,
        *,
        mode: int | None = None,
        initial: bool = False,
    ) -> Envelope[op.UploadResult]:
        def work(_: float) -> Envelope[op.UploadResult]:
            address, limit = self._path(), self.limits.transfer_bytes
            kind, own_mode, first = outgoing(data_or_path, limit)
            mode_or_own = own_mode if mode is None else mode
            request = op.Upload(path=path, kind=kind, mode=mode_or_own)  # a wrong one is not sent
            params = {"path": request.path, **({} if mode_or_own is None else {"mode": f"{mode_or_own:o}"})}
            params |= {"initial": "true"} if initial else {}
            del first  # made anew each time it is sent
            headers = {"X-Request-Id": new_ident()}
            known = len(data_or_path) if isinstance(data_or_path, bytes) else None
            data = upload(self.service, address, kind, params, lambda: outgoing(data_or_path, limit)[2], headers, known)
            return self._read(op.UploadResult, data, "upload")

        return self.hidden.envelope(self._answered(op.Upload, work))

    def download_pieces(
        self, path: str, sink: Callable[[bytes], None], *, without: Sequence[str] = ()
    ) -> Envelope[op.DownloadResult]:
        """See ``SandboxedEnvironment.download_pieces``."""

        def work(_: float) -> Envelope[op.DownloadResult]:
            request = op.Download(path=path, without=tuple(without))
            headers = {"X-Request-Id": new_ident()}
            data = download(self.service, self._path(), request_data(request), headers, sink)
            return self._read(op.DownloadResult, data, "download")

        return self.hidden.envelope(self._answered(op.Download, work))

    def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        """See ``OperationMethods.download``."""
        check_types("download", path=(path, str), to=(to, HOST_PATH | None), without=(without, Sequence))

        def work(_: float) -> Envelope[op.DownloadResult]:
            with Incoming(to, self.limits.transfer_bytes, overwrite=overwrite) as incoming:
                answer = self.download_pieces(path, incoming.take, without=without)
                if isinstance(answer, Success):
                    return replace(answer, result=incoming.finish(answer.result))
                return answer

        return self.hidden.envelope(self._answered(op.Download, work))

    def _read(self, kind: type[Any], data: Any, what: str) -> Envelope[Any]:
        try:
            return self.with_owed(read_envelope(kind, data))
        except (ValueError, KeyError) as error:
            raise nonsense(self.service, what) from error

    def _ask_for_state(self, method: str, args: Mapping[str, Any], kind: type[Any]) -> Envelope[Any]:
        """See ``RemoteState``."""
        headers = {"X-Request-Id": new_ident(), **BYTES_TOO}
        call = Call("POST", f"{self._path()}/{method}", json.dumps(args).encode(), headers=headers, read_seconds=START_SECONDS)
        with self.explaining():
            data = self.service.json(replace(call, repeatable=True, joins=True))
        return self.hidden.envelope(self._read(kind, data, method))

    def _fetch_checkpoint(self, id: str, file: BinaryIO) -> int:  # noqa: A002
        """See ``RemoteState``."""
        with self.explaining():
            return fetch(self.service, f"{self._path()}/checkpoints", {"id": id}, file)

    def _send_checkpoint(self, path: str | os.PathLike[str], name: str | None) -> Envelope[op.CheckpointResult]:
        """See ``RemoteState``."""
        params = {} if name is None else {"id": name}
        with self.explaining():
            data = send(self.service, f"{self._path()}/checkpoints", params, path, {"X-Request-Id": new_ident()})
        return self.hidden.envelope(self._read(op.CheckpointResult, data, "load_checkpoint"))

    def fork(self, count: int = 1, checkpoint: str | None = None) -> Envelope[op.ForkResult]:
        """See ``StateMethods.fork``. The others live as long as this one was to, and are deleted when they are closed."""
        check_types("fork", count=(count, int), checkpoint=(checkpoint, str | None))

        def work(started: float) -> Envelope[op.ForkResult]:
            body = {"count": count, **({} if checkpoint is None else {"checkpoint": checkpoint})}
            service = self.service.another()  # its answer is needed also if this is closed meanwhile
            try:
                found = Creation(service, f"{self._path()}/fork", body).carry_out()
            except SandboxError as error:
                if error.code is ProblemCode.invalid_body:
                    error.code = ErrorCode.invalid_arguments
                raise self._explained(error) from error
            finally:
                service.close()
            made = tuple(self._twin(each) for each in found["items"])
            seconds = time.monotonic() - started
            result = op.ForkResult(id=checkpoint or "", count=count, environments=made, seconds=round(seconds, 3))
            return Success(result, duration_ms=seconds * 1000)

        return self.hidden.envelope(self._answered(op.Usage, work))

    def _twin(self, found: Any) -> RemoteEnvironment:
        """Return the environment of a sandbox that the service has made like this one."""
        twin = RemoteEnvironment(
            url=self.service.url,
            api_key=self.service.api_key,
            ca_file=self.service.ca_file,
            approver=self.approver,
            profile=self.profile,
            track_changes=self.track_changes,
        )
        self.hidden.copy_to(twin.hidden)
        twin._take(found)
        return twin

    def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        rows: int = 24,
        cols: int = 80,
    ) -> RemoteTerminal:
        """Start a command with a terminal, a shell without ``argv``, and return what shows and types. Raises SandboxError."""
        variables = {**self.hidden.variables(None), **(env or {})}
        path = f"{self._path()}/terminals"
        made = RemoteTerminal(self.service, path, argv, env=variables, cwd=cwd, user=user, rows=rows, cols=cols)
        self._terminals.add(made)
        if self._closed:  # by another thread, which may not have found it
            made.end()
        return made

    # Description

    def describe(self) -> dict[str, str]:
        """Return short sections for the prompt, as the service has them now; the last known ones if it does not answer."""
        if self._id is not None and not self._closed and not forks.forked_since(self._pid):
            call = Call("GET", _path_of(self._id), read_seconds=LOOK_SECONDS, repeatable=True, patience_seconds=0)
            try:
                found = self.service.json(call)
                self._description = {str(name): str(text) for name, text in found["description"].items()}
            except (SandboxError, KeyError, TypeError, AttributeError):
                log.info("the service did not describe the sandbox", exc_info=True)
        shown = {name: self.hidden.mask.text(text) for name, text in self._description.items()}
        own = self.hidden.describe()
        if "secrets" in shown and "secrets" in own:  # those that the service keeps, and those of this program
            own["secrets"] = f"{shown['secrets']} {own['secrets']}"
        # Their order stays, so that the beginning of a prompt does.
        names = [name for name in shown if name not in _LAST]
        return {name: shown[name] for name in names} | own | {n: shown[n] for n in _LAST if n in shown}


def _path_of(ident: str) -> str:
    if not ident.isascii() or not ident.isalnum():
        raise SandboxError(
            ErrorCode.sandbox_not_found, f"{ident!r:.80} is not the id of a sandbox.", "`gamebox ls --remote` lists the ids."
        )
    return f"/v1/sandboxes/{ident}"


def _closed() -> SandboxError:
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox is closed.", "Make a new environment.")


def _not_started() -> SandboxError:
    hint = "Use it inside a with block, or call start() first."
    return SandboxError(ErrorCode.sandbox_closed, "The sandbox is not started.", hint)
