"""Operations as an environment has them carried out by the guest of its sandbox: sent, watched, and answered with an envelope."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sandbox import operations as op
from sandbox.backend import Backend
from sandbox.envelope import Envelope, Failure, Notice, Success
from sandbox.environment.base import Environment
from sandbox.environment.call_errors import check_request
from sandbox.environment.host_actions import hear
from sandbox.errors import ErrorCode, SandboxUnavailableError
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.messages.faults import fault_error, violation
from sandbox.pipe.replies import fault_of, notices_of
from sandbox.pipe.watching import Watch, with_onlooker

from .network import SandboxNetwork
from .services import PACKAGE_MANAGERS, SandboxServices

if TYPE_CHECKING:
    from sandbox.operations.base import Answer, Prepared, Reply
    from sandbox.pipe.transport import Transport
    from sandbox.text.screen import Screens

@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request as it is sent, its ``watch``, and when its caller made it (monotonic)."""

    request: op.Request
    prepared: Prepared
    watch: Watch | None
    started: float


class GuestOperations(Environment):
    """An environment whose operations a guest carries out. What it is made of, a subclass sets."""

    backend: Backend
    limits: Limits
    # Ids of commands that the host's program runs for itself, such as a kernel: notices of them reach no model.
    internal_commands: set[str]
    _transport: Transport | None
    _network: SandboxNetwork
    _services: SandboxServices
    _host: GuestHost

    @abstractmethod
    def _live(self) -> Transport:
        """Return the transport of a sandbox that is in use. Raises SandboxError."""

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """See ``Environment.perform``."""
        return self.carry_out(self.prepared(request, watch))

    def prepared(self, request: op.Request, watch: Watch | None) -> PreparedCall:
        """Return the request as it is sent. Raises SandboxError, and TypeError for what is not a request."""
        check_request(request, watch)
        started = time.monotonic()
        prepared = self._with_variables(request, request.prepare(self.limits))
        if (watch := watch_of(request, prepared, watch)) is not None:
            watch = watch.masked(self.hidden.mask) if self.hidden else watch
            prepared = request.reading_from(prepared, watch.stdin)._replace(watch=watch)
        return PreparedCall(request, prepared, watch, started)

    def carry_out(self, call: PreparedCall) -> Envelope[Any]:
        """Send a request that was prepared, and return the answer. Raises SandboxError."""
        try:
            answer = call.request.answer(call.prepared, self._host)
        except SandboxUnavailableError as error:
            if error.reason == "no_answer" and call.prepared.waits_for_command:
                raise self._unanswered(error) from error
            raise
        if call.watch is not None:
            call.watch.finish()
        return self._envelope(call.request, answer, call.started)

    async def carry_out_awaited(self, call: PreparedCall) -> Envelope[Any]:
        """Do what ``carry_out`` does, in an asyncio loop and without a thread. Raises SandboxError."""
        from sandbox.pipe.awaiting import request  # asyncio takes 30 ms to import

        kind, prepared = type(call.request), call.prepared
        stoppable = kind.starts_process or kind.waits
        try:
            reply = await request(
                self._live(), kind.operation, prepared.args, stoppable=stoppable, **prepared.options()
            )
        except SandboxUnavailableError as error:
            if error.reason == "no_answer" and prepared.waits_for_command:
                import asyncio

                raise await asyncio.to_thread(self._unanswered, error) from error
            raise
        if call.watch is not None:
            call.watch.finish()
        return self._envelope(call.request, call.request.read_reply(reply, self._host), call.started)

    def _unanswered(self, error: SandboxUnavailableError) -> SandboxUnavailableError:
        """Make good on a command's deadline though the guest is silent; return the error to report."""

        def give_up(reported: SandboxUnavailableError) -> None:
            if self._transport is not None:
                self._transport.give_up(reported)

        return self.backend.explain_silence(error, give_up)

    def _with_variables(self, request: op.Request, prepared: Prepared) -> Prepared:
        """Give a command the secrets that it gets by itself or has asked for, unless it sets these variables itself."""
        variables = self.hidden.variables(prepared.secret_names) if request.starts_process else {}
        if not variables:
            return prepared
        return prepared._replace(args={**prepared.args, "env": {**variables, **(prepared.args.get("env") or {})}})

    def _envelope(self, request: op.Request, answer: Answer, started: float) -> Envelope[Any]:
        fields, result, of_result = answer
        duration_ms = (time.monotonic() - started) * 1000
        of_services = self._services.notices()
        notices = (*self._owed_notices(), *self._notices_in(fields), *of_services)
        hear(notices)
        if of_result:
            notices = (*notices, *notices_of(list(of_result)))
        fault = fields.get("fault")
        if fault is None:
            if result is None:
                raise violation(request.operation)
            return Success(result, duration_ms=duration_ms, notices=notices)
        error = fault_of(self.hidden.mask.fields(fault), request.operation)
        schema = op.schema_of(type(request)) if error.code is ErrorCode.invalid_arguments else None
        return Failure.of(error, result=result, duration_ms=duration_ms, notices=notices, schema=schema)

    def _notices_in(self, fields: Mapping[str, Any]) -> list[Notice]:
        notices = self.hidden.mask.fields(fields.get("notices"))
        if self.internal_commands and isinstance(notices, list):
            notices = [n for n in notices if not (isinstance(n, dict) and n.get("id") in self.internal_commands)]
        return notices_of(notices, self._known_of_packages() if notices else {})

    def _known_of_packages(self) -> dict[str, Any]:
        """Return what notices say of packages: the package managers that can install some ("" for none), and if / is read-only."""
        installers = self._services.installers()
        if installers is None:
            installers = " or ".join(PACKAGE_MANAGERS) if self._network.policy.mode in ("open", "bridge") else ""
        return {"installers": installers, "read_only_root": self.backend.describe().read_only_root}


def watch_of(request: op.Request, prepared: Prepared, watch: Watch | None) -> Watch | None:
    """Return the watch, with the onlooker of a command that is waited for.

    Raises OperationError where there is nothing to watch, or it was cancelled before it began.
    """
    if watch is not None and watch.cancel is not None and watch.cancel.cancelled:
        raise fault_error(ErrorCode.cancelled, {}, request.operation)
    if prepared.waits_for_command:
        return with_onlooker(watch)
    if request.starts_process and watch is not None and watch.listens:
        problem = "on_output is for commands that are waited for; see the output of one in the background with logs"
        raise fault_error(ErrorCode.invalid_arguments, {"problem": problem}, request.operation)
    return watch


class GuestHost:
    """What the environment offers to its operations, see ``operations.base.Host``."""

    def __init__(self, live: Callable[[], Transport], network_usage: Callable[[], Mapping[str, Any]]) -> None:
        self._live = live
        self.network_usage = network_usage

    def ask(self, operation: str, prepared: Prepared) -> Reply:
        """Send a request to the guest."""
        return self._live().request(operation, prepared.args, **prepared.options())

    @cached_property
    def screens(self) -> Screens:
        """The screens of the commands that have a terminal."""
        from sandbox.text.screen import Screens  # pyte takes 60 ms to load

        return Screens()
