"""Environment: where actions are carried out, answered with one envelope whatever happens.

The base class runs the functions of actions on the host, as the seeds' own class does. Sandboxed environments extend it: an action
bound to one of their operations goes into the sandbox, any other runs here.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar, Unpack, runtime_checkable

from sandbox import operations as op
from sandbox.argument_types import UNLIMITED
from sandbox.envelope import Envelope, Failure, Notice, Success, jsonable
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages import arguments as argument_words
from sandbox.pipe.watching import CancelToken, Watch
from sandbox.readers import Hint
from sandbox.state.methods import StateMethods
from sandbox.text.wording import value_text

from .call_errors import check_call, check_request, raise_if_closed, raise_if_wrong_call, validation_error
from .generated.methods import LogsOptions
from .host_actions import (
    MOST_OWED,
    HostCallTimeoutError,
    call_with_deadline,
    checked_result,
    failure_of_exception,
    failure_of_stopped,
    failure_of_unstopped,
    hearing,
)
from .methods import OperationMethods
from .parts.secrets import Secrets

if TYPE_CHECKING:
    from pydantic import ValidationError

    from sandbox.network.connections import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")

# Failures after which doing it again may work, where doing it twice does no harm.
_RETRYABLE_WHEN_IDEMPOTENT = {"timeout", "io_error", "connection_failed", "transfer_incomplete", "too_many_processes"}

Approver = Callable[[str, Mapping[str, Any]], bool]


_approver: ContextVar[Approver | None] = ContextVar("gamebox_approver", default=None)


@contextmanager
def approving(approver: Approver) -> Iterator[None]:
    """Have ``approver`` asked by environments that have none of their own while the block runs."""
    token = _approver.set(approver)
    try:
        yield
    finally:
        _approver.reset(token)


_cancel_token: ContextVar[CancelToken | None] = ContextVar("gamebox_cancel_token", default=None)


@contextmanager
def cancelling(token: CancelToken) -> Iterator[None]:
    """Have ``token`` end the operations of actions that begin in the block, also in threads with a copy of its context.

    They are answered ``cancelled``.
    """
    before = _cancel_token.set(token)
    try:
        yield
    finally:
        _cancel_token.reset(before)


@runtime_checkable
class ActionLike(Protocol):
    """An action as an environment uses it; ``operation`` and ``metadata`` may be missing."""

    name: str

    def execute(self, /, **kwargs: Any) -> Any:
        """Call the action's function."""


class Environment(OperationMethods, StateMethods):
    """Carries out actions. ``execute_action`` never raises for what a tool does.

    ``approver`` is asked before an action whose metadata says ``requires_approval``; without one such actions are refused. A
    subclass that implements ``perform`` has every operation: ``SandboxedEnvironment`` over a Backend, a client of a remote service
    by sending the request.
    """

    def __init__(self, approver: Approver | None = None) -> None:
        self.approver = approver

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        """Carry out ``action`` with ``args``; the answer is the envelope as a dict.

        Metadata of the action has these effects: ``requires_approval`` asks the approver first; ``timeout_s`` bounds the
        call (seconds); ``idempotent`` says that a failure may be retried; ``shown_chars`` is how much of its result a model is
        shown, instead of 10,000 characters. What a function returns is checked against the
        action's ``return_schema``.
        """
        started = time.monotonic()
        if not isinstance(getattr(action, "name", None), str):
            return Failure[Any](
                ErrorCode.unknown_tool, f"{action!r:.200} is not an action.", "Give an action with a name and execute."
            ).to_dict()
        metadata: Mapping[str, Any] = getattr(action, "metadata", None) or {}
        if args is None:
            args = {}
        if not isinstance(args, Mapping):
            return _invalid(
                action, f"The arguments of {action.name} must be an object, not {type(args).__name__}."
            ).to_dict()
        if metadata.get("requires_approval") and not self._approved(action.name, args):
            return Failure[Any](
                ErrorCode.approval_refused,
                f"{action.name} needs an approval and did not get one.",
                "Do without this action, or explain to the user why it is needed.",
            ).to_dict()
        operation = getattr(action, "operation", None)
        if operation is not None and operation in op.OPERATIONS:
            return self._operate(action, operation, args, metadata)
        with hearing() as heard:
            answer = self._call(action, args, metadata, started)
        passed_on = answer.notices if isinstance(answer, Failure) else answer.get("notices") or ()
        # Notices of the function's own requests go to the next answer, unless the function passes them on.
        self._owed.extend(n for n in heard if n not in passed_on and n.to_dict() not in passed_on)
        masked: dict[str, Any] = self.hidden.data(answer if isinstance(answer, dict) else answer.to_dict())
        if late := self._owed_notices():
            masked["notices"] = [*(masked.get("notices") or ()), *(notice.to_dict() for notice in late)]
        return masked

    def _owed_notices(self) -> tuple[Notice, ...]:
        """Return the notices that no answer has carried yet, each once: some came with requests that have no envelope."""
        found = []
        while self._owed:
            with suppress(IndexError):  # several threads may be answered at once
                found.append(self._owed.popleft())
        return tuple(found)

    @cached_property
    def _owed(self) -> deque[Notice]:
        return deque(maxlen=MOST_OWED)

    @cached_property
    def hidden(self) -> Secrets:
        """The secrets, which are masked in every answer."""
        return Secrets()

    def secret(self, name: str, value: str, *, always: bool = True) -> None:
        """Give commands the variable ``name`` with a value that is shown as ``***name***`` wherever it would be answered.

        All commands get it; with ``always=False`` only those run with ``secrets=[name]``. It may be called before the start and
        again for another value: the earlier one stays masked. Raises SandboxError: ``invalid_configuration`` for a value of fewer
        than 8 characters, ``operation_not_supported`` where no commands are run.
        """
        raise _unsupported("secret")

    def _approved(self, name: str, args: Mapping[str, Any]) -> bool:
        """Return whether the approver approves; one that raises does not."""
        try:
            approver = _approver.get() if self.approver is None else self.approver
            return approver is not None and bool(approver(name, args))
        except Exception:
            log.warning("the approver failed on %s", name, exc_info=True)
            return False

    def _operate(
        self, action: ActionLike, operation: str, args: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Carry out an action that is bound to an operation."""
        if refused := sorted(op.OPERATIONS[operation].host_only() & set(args)):
            return _invalid(action, f"{action.name} has no argument {', '.join(refused)}.").to_dict()
        if args.get("timeout_seconds") in (UNLIMITED, math.inf):
            return _invalid(action, f"timeout_seconds of {action.name} must be a number of seconds.").to_dict()
        bounded = _bounded(operation, args, metadata)
        bound = None if "timeout_seconds" in bounded else metadata.get("timeout_s")
        idempotent = bool(metadata.get("idempotent"))
        token, around = CancelToken(), _cancel_token.get()
        watch = None if bound is None and around is None else Watch(cancel=token)
        try:
            with nullcontext() if around is None else around.calling(token.cancel):
                answer = call_with_deadline(
                    action.name, lambda: self.execute(operation, bounded, watch=watch).to_dict(), bound, token.cancel
                )
        except HostCallTimeoutError as error:
            return failure_of_unstopped(action.name, error.seconds, idempotent).to_dict()
        stopped = token.cancelled and not (around is not None and around.cancelled)
        if stopped and bound is not None and answer.get("code") == ErrorCode.cancelled:
            answer = failure_of_stopped(action.name, answer, bound, idempotent).to_dict()
        envelope = checked_result(action.name, answer, getattr(action, "return_schema", None))
        if idempotent and envelope.get("code") in _RETRYABLE_WHEN_IDEMPOTENT:
            envelope["retryable"] = True
        return envelope

    def _call(
        self, action: ActionLike, args: Mapping[str, Any], metadata: Mapping[str, Any], started: float
    ) -> dict[str, Any] | Failure[Any]:
        retryable = bool(metadata.get("idempotent"))
        try:
            value = call_with_deadline(action.name, lambda: _returned(action.execute(**args)), metadata.get("timeout_s"))
        except Exception as error:
            log.info("tool %s failed", action.name, exc_info=True)
            return failure_of_exception(
                action.name, error, (time.monotonic() - started) * 1000, retryable, self.hidden.mask.text
            )
        if isinstance(value, Success | Failure):
            value = value.to_dict()
        if not (isinstance(value, dict) and isinstance(value.get("tool_executed"), bool)):
            value = self.format_result(value)
        schema = getattr(action, "return_schema", None)
        envelope = checked_result(action.name, dict(value), schema, self.hidden.mask.text)
        if isinstance(chars := metadata.get("shown_chars"), int):
            envelope["shown_chars"] = chars
        envelope.setdefault("duration_ms", 0.0)
        if not envelope["duration_ms"]:
            envelope["duration_ms"] = round((time.monotonic() - started) * 1000, 3)
        return envelope

    def format_result(self, result: Any) -> dict[str, Any]:
        """Return the success envelope around the value that a tool's function returned. Override it to add metadata."""
        return Success(jsonable(result)).to_dict()

    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        """Carry out a sandbox operation by name; see ``operations.OPERATIONS`` for names and arguments.

        The arguments may be those of a model: host-only ones such as ``user`` are the failure ``invalid_arguments``. Programs give
        these to the methods (``run(user=...)``), or as ``HostArguments``.
        ``watch`` gets the output of a command as it comes, and can stop it.
        """
        return self.hidden.envelope(self._executed(operation, args, watch))

    def _carried_out(self, operation: str, args: Mapping[str, Any], watch: Watch | None) -> Envelope[Any]:
        given, request = check_call(op.OPERATIONS[operation], args)
        if request is not None and validates_as_usual(self):  # what ``execute`` does, without a second validation
            answer = self.hidden.envelope(self._performed(request, watch))
        else:
            answer = self.execute(operation, given, watch=watch)
        raise_if_closed(answer)
        return answer

    def _executed(self, operation: str, args: Mapping[str, Any], watch: Watch | None) -> Envelope[Any]:
        request = self.validated(operation, args)
        return request if isinstance(request, Failure) else self._performed(request, watch)

    def _performed(self, request: op.Request, watch: Watch | None) -> Envelope[Any]:
        """Return what ``perform`` answers, or the failure for what it raises."""
        started = time.monotonic()
        try:
            return self.perform(request) if watch is None else self.perform(request, watch)
        except SandboxError as error:
            return failure_of_request(request, error, started)

    def validated(self, operation: str, args: Mapping[str, Any]) -> op.Request | Failure[Any]:
        """Return the request of an operation by name, or the Failure that says what is invalid."""
        given: tuple[object, object] = operation, args  # by callers whose types nobody has checked
        kind = op.find(operation) if isinstance(given[0], str) else None
        if kind is None:
            message = f"There is no operation {value_text(operation)}."
            return Failure[Any](ErrorCode.unknown_tool, message, f"Use one of: {', '.join(op.OPERATIONS)}.")
        by_host = isinstance(args, op.HostArguments)
        if not by_host and not isinstance(given[1], Mapping):
            return Failure[Any](
                ErrorCode.invalid_arguments,
                f"The arguments of {operation} must be an object, not {type(args).__name__}.",
                f"Call {operation} again with arguments that fit its schema.",
                schema=op.schema_of(kind),
            )
        if not by_host and (refused := _host_only(kind, args)):
            return Failure[Any](
                ErrorCode.invalid_arguments,
                f"Only the host's program may give {operation} the argument {refused!r}.",
                Hint(f"Call {operation} without it.", host=f"Call env.{operation}(...), or leave it out."),
                next_tool=operation,
                schema=op.schema_of(kind),
            )
        try:
            return kind.model_validate(dict(args))
        except validation_error() as error:
            return invalid_arguments(kind, error, self.hidden.mask.text)

    def perform(self, request: op.Request, watch: Watch | None = None) -> Envelope[Any]:
        """Carry out a validated request, with host-only arguments, too: it is for the host's program, not for what a model sent.

        Raises SandboxError for what ``execute`` answers as a failure, except what happened within the sandbox, and TypeError for
        what is not a request.
        """
        check_request(request, watch)
        raise _unsupported(request.operation)

    def _answered(self, kind: type[op.Request], work: Callable[[float], Envelope[T]]) -> Envelope[T]:
        """Return what ``work`` answers, or the failure for what it raised; ``work`` is given the present time (monotonic)."""
        from pydantic import ValidationError

        started = time.monotonic()
        try:
            return work(started)
        except (ValidationError, SandboxError, OSError) as error:
            return self._failed(kind, error, started)

    def _failed(self, kind: type[op.Request], error: Exception, started: float) -> Failure[Any]:
        """Return the failure for what an operation raised. Raises what is none."""
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            raise_if_wrong_call(kind, error)
            return invalid_arguments(kind, error, self.hidden.mask.text)
        if isinstance(error, SandboxError) and error.code is not ErrorCode.sandbox_closed:
            return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000)
        if not isinstance(error, OSError):
            raise error
        # Of the host's files; the pipe's own are worded by the transport.
        message = f"{error.filename or 'A file'} on the host could not be read or written: {error.strerror or error}."
        return Failure(ErrorCode.io_error, message, "Check the files on the host, then do it again.", effects="unknown")

    def upload(self, data_or_path: bytes | str | os.PathLike[str], path: str) -> Envelope[op.UploadResult]:
        return Failure.of(_unsupported("upload"))

    def download(
        self,
        path: str,
        to: str | os.PathLike[str] | None = None,
        *,
        without: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Envelope[op.DownloadResult]:
        return Failure.of(_unsupported("download"))

    def service_logs(self, name: str, **options: Unpack[LogsOptions]) -> Envelope[op.LogsResult]:
        """Return the output of the side service ``name``; options as in ``logs``."""
        return Failure.of(_unsupported("service_logs"))

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The last connections that programs made or tried, if the environment sees them."""
        return ()

    def describe(self) -> dict[str, str]:
        """Short sections about this environment for the prompt, in a stable order; {} when there is nothing to say."""
        return {}

    def start(self) -> Self:
        """Make the environment ready; does nothing the second time."""
        return self

    def close(self, *, wait: bool = False) -> None:
        """Release what the environment holds; may be called more than once. ``wait`` also waits until nothing is left of it."""

    def remove(self) -> None:
        """End the sandbox, also a kept one, which ``close`` leaves running, and wait until it is gone."""
        self.close(wait=True)

    def pause(self) -> None:
        """Stop everything in the sandbox until ``resume``. Raises SandboxError if there is no sandbox that can be stopped."""
        raise _unsupported("pause")

    def resume(self) -> None:
        """Undo ``pause``. Raises SandboxError."""
        raise _unsupported("resume")

    def __repr__(self) -> str:
        return f"<{' '.join((type(self).__name__, *self._summary()))}>"

    def _summary(self) -> tuple[str, ...]:
        """Return what ``repr`` shows: which environment it is, and its state."""
        return ()

    if not TYPE_CHECKING:  # a type checker is to find this itself

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is not asynchronous: use 'async with AsyncEnvironment({type(self).__name__}(...)) as env', "
                "or a plain 'with'."
            )

        async def __aexit__(self, *exc: object) -> None:
            """Do nothing. It exists because ``async with`` looks for it before it calls ``__aenter__``."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()


_EXECUTE, _VALIDATED = Environment.execute, Environment.validated


def validates_as_usual(env: Environment) -> bool:
    """Return whether ``execute`` and ``validated`` of an environment are those of the base class, and nobody has replaced them."""
    return (
        getattr(env.execute, "__func__", None) is _EXECUTE and getattr(env.validated, "__func__", None) is _VALIDATED
    )


def _returned(value: Any) -> Any:
    """Return ``value``, awaited if the tool is a coroutine function."""
    if not inspect.isawaitable(value):
        return value
    from .coroutines import run_awaitable  # asyncio takes 30 ms to import, and few tools need it

    return run_awaitable(value)


def failure_of_request(request: op.Request, error: SandboxError, started: float) -> Failure[Any]:
    """Return the failure for what ``perform`` raised; it began at ``started`` (monotonic)."""
    schema = op.schema_of(type(request)) if error.code is ErrorCode.invalid_arguments else None
    return Failure.of(error, duration_ms=(time.monotonic() - started) * 1000, schema=schema)


def _host_only(kind: type[op.Request], args: Mapping[str, Any]) -> str | None:
    """Return the first host-only argument whose value is not its default."""
    given = sorted(kind.host_only() & set(args))
    return next((name for name in given if args[name] is not kind.model_fields[name].default), None)


def _text_of(value: object) -> str:
    """``value`` as text, all of it: what is masked must not be cut before."""
    return value if isinstance(value, str) else value_text(value, most=sys.maxsize)


def invalid_arguments(kind: type[op.Request], error: ValidationError, masked: Callable[[str], str]) -> Failure[Any]:
    """Return the failure that names each wrong argument and its value, and the schema. Texts are ``masked`` before they are cut."""
    schema = op.schema_of(kind)
    return Failure[Any](
        ErrorCode.invalid_arguments,
        f"{'; '.join(_problem(kind, e, schema, masked) for e in error.errors(include_url=False)[:5])}.",
        f"Correct that and call {kind.operation} again.",
        next_tool=kind.operation,
        retryable=False,
        schema=schema,
    )


def _problem(kind: type[op.Request], error: Any, schema: Mapping[str, Any], masked: Callable[[str], str]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "arguments"
    value = error.get("input")
    shown = masked(value) if isinstance(value, str) else value
    if len(error["loc"]) > 1:
        place = [name, *(masked(part) if isinstance(part, str) else part for part in error["loc"][1:])]
        words = argument_words.nested(error["type"], place, shown, schema)
        return words or argument_words.wrong(name, shown, schema)
    if error["type"] == "missing":
        return argument_words.missing(kind.operation, [name], schema)
    if error["type"] == "extra_forbidden":
        return argument_words.unknown(kind.operation, name, schema)
    return argument_words.wrong(name, shown, schema)


def _invalid(action: ActionLike, message: str) -> Failure[Any]:
    schema = getattr(action, "parameters", None)
    return Failure[Any](
        ErrorCode.invalid_arguments,
        message,
        "Send the arguments as one JSON object that fits the schema.",
        schema=schema,
    )


def _unsupported(operation: str) -> SandboxError:
    where = (
        "DockerEnvironment"
        if operation in ("pause", "resume", "service_logs")
        else "DockerEnvironment or LocalEnvironment"
    )
    return SandboxError(
        ErrorCode.operation_not_supported,
        f"There is no sandbox to carry out {operation!r} in.",
        Hint(
            "No tool for files, commands or pages works here: finish, and say that there is no sandbox.",
            host=f"Use {where}.",
        )
        if operation in op.OPERATIONS and operation not in ("upload", "download")
        else f"Use {where}.",
    )


def _bounded(operation: str, args: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the command's timeout limited to ``timeout_s`` of the metadata."""
    bound = metadata.get("timeout_s")
    bounded = dict(args)
    if bound is not None and "timeout_seconds" in op.OPERATIONS[operation].model_fields:
        asked = bounded.get("timeout_seconds")
        bounded["timeout_seconds"] = min(asked, bound) if isinstance(asked, int | float) else bound
    return bounded
