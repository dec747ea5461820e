"""Calling the function of a tool on the host: with a deadline, and with every exception turned into a failure."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sandbox.envelope import Failure, Notice
from sandbox.errors import ErrorCode, SandboxError

# Exceptions after which the same call can work another time (the tool did not get through to what it needed).
TRANSIENT: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError, InterruptedError, BlockingIOError)


# From the end of a call's time to its answer, if it can be stopped: a sandbox takes 3.5 s at most to end a fork storm.
STOP_SECONDS = 4.0


# What stops the present call: one list for each deadline that the call is under.
_STOPS: contextvars.ContextVar[tuple[list[Callable[[], None]], ...]] = contextvars.ContextVar("stops", default=())


# Notices that wait for the next answer; a guest sends fewer.
MOST_OWED = 20
# Notices that come once, with the answer to any request: they are not for the caller of that request alone.
ONCE = frozenset(
    {
        "command_ended",
        "server_listening",
        "cpu_limit",
        "lifetime_ending",
        "idle_ending",
        "service_ended",
        "reconnected",
        "memory_nearly_full",
        "disk_nearly_full",
        "write_lost",
        "processes_nearly_full",
    }
)
# The notices of the requests that the function of a tool makes.
_heard: contextvars.ContextVar[list[Notice] | None] = contextvars.ContextVar("heard", default=None)


@contextmanager
def hearing() -> Iterator[list[Notice]]:
    """Collect the notices that come once and are given to ``hear`` during the block."""
    heard: list[Notice] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def hear(notices: Iterable[Notice]) -> None:
    """Note the notices of an answer for the tool whose function asked, if one did."""
    if (heard := _heard.get()) is not None:
        heard += [n for n in notices if n.code in ONCE]


class HostCallTimeoutError(Exception):
    """A call did not return in time. Unless ``stopped``, it may still be at work."""

    def __init__(self, name: str, seconds: float, *, stopped: bool = False) -> None:
        super().__init__(name, seconds)
        self.seconds = seconds
        self.stopped = stopped


class CallStoppedError(Exception):
    """A call ended because it was stopped."""


def stop_with(stop: Callable[[], None]) -> None:
    """Name what stops the call that runs in this context, for when its deadline passes. It may be called from any thread."""
    for stops in _STOPS.get():
        stops.append(stop)


def call_with_deadline(
    name: str, call: Callable[[], Any], timeout_s: float | None, stop: Callable[[], None] | None = None
) -> Any:
    """Return what ``call`` returns. Raises HostCallTimeoutError after ``timeout_s`` seconds (None: no limit).

    ``stop``, and what ``call`` named with ``stop_with``, is called at that time, from this thread, and ``call`` should then return
    soon: it has ``STOP_SECONDS`` for it.
    """
    if timeout_s is None:
        return call()
    outcome: list[tuple[bool, Any]] = []
    stops = [] if stop is None else [stop]
    context = contextvars.copy_context()
    context.run(lambda: _STOPS.set((*_STOPS.get(), stops)))

    def work() -> None:
        try:
            outcome.append((True, context.run(call)))
        except BaseException as error:  # noqa: BLE001  handed over to the caller's thread
            outcome.append((False, error))

    thread = threading.Thread(target=work, name=f"tool-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    late = not outcome
    if late and stops:
        for each in tuple(stops):
            each()
        thread.join(STOP_SECONDS)
    if not outcome:
        raise HostCallTimeoutError(name, timeout_s)
    returned, value = outcome[0]
    if late and isinstance(value, CallStoppedError):
        raise HostCallTimeoutError(name, timeout_s, stopped=True)
    if not returned:
        raise value
    return value


def failure_of_exception(
    name: str, error: Exception, duration_ms: float, idempotent: bool, masked: Callable[[str], str] = str
) -> Failure[Any]:
    """Return the failure for an exception of a tool's function. Texts are ``masked`` before they are cut."""
    if isinstance(error, SandboxError):
        return Failure.of(error, duration_ms=duration_ms)
    if isinstance(error, HostCallTimeoutError) and error.stopped:
        return Failure[Any](
            ErrorCode.timeout,
            f"{name} took more than {error.seconds:g} seconds and was cancelled.",
            "What it did before stays done: look at that before you call it again.",
            retryable=idempotent,
            effects="unknown",
            duration_ms=duration_ms,
        )
    if isinstance(error, HostCallTimeoutError):
        return Failure[Any](
            ErrorCode.timeout,
            f"{name} did not answer within {error.seconds:g} seconds.",
            "It runs on the host and may still be at work: look at what it has done before you call it again.",
            retryable=idempotent,
            effects="unknown",
            duration_ms=duration_ms,
        )
    text = str(error) or type(error).__name__
    return Failure[Any](
        ErrorCode.tool_error,
        masked(f"{name} failed: {type(error).__name__}: {text}")[:2000],
        "Check the arguments against what the tool expects, or choose another way.",
        retryable=idempotent and isinstance(error, TRANSIENT),
        effects="none" if idempotent else "unknown",
        duration_ms=duration_ms,
    )


def failure_of_stopped(name: str, cancelled: Mapping[str, Any], seconds: float, idempotent: bool) -> Failure[Any]:
    """Return the failure for an operation that was stopped after ``seconds`` and answered as ``cancelled``."""
    return Failure[Any](
        ErrorCode.timeout,
        f"{name} took more than {seconds:g} seconds and was stopped.",
        "Nothing of it goes on in the sandbox. Ask for less at once: a smaller folder, fewer lines, a shorter wait.",
        retryable=idempotent,
        effects=cancelled["effects"],
        result=cancelled["result"],
        duration_ms=cancelled["duration_ms"],
    )


def failure_of_unstopped(name: str, seconds: float, idempotent: bool) -> Failure[Any]:
    """Return the failure for an operation that neither answered within ``seconds`` nor could be stopped."""
    return Failure[Any](
        ErrorCode.timeout,
        f"{name} did not answer within {seconds:g} seconds, and did not stop when it was asked to.",
        "It may still be at work in the sandbox: look at what it has done before you call it again.",
        retryable=idempotent,
        effects="unknown",
        duration_ms=seconds * 1000,
    )


def checked_result(
    name: str, envelope: dict[str, Any], schema: Mapping[str, Any] | None, masked: Callable[[str], str] = str
) -> dict[str, Any]:
    """``envelope``, or the failure ``invalid_result`` if it is a success whose result does not fit ``schema``."""
    if schema is None or envelope["tool_executed"] is not True:
        return envelope
    from jsonschema import Draft202012Validator, SchemaError  # takes 60 ms to import, and few tools have such a schema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        Draft202012Validator.check_schema(schema)
        # An empty registry of schemas: a $ref is never fetched from the network.
        problem = next(Draft202012Validator(schema, registry=Registry()).iter_errors(envelope.get("result")), None)
    except (SchemaError, Unresolvable) as error:
        why = f"{name} has a return_schema that is not a JSON schema: {error}"[:500]
    except (ArithmeticError, ValueError, RecursionError) as error:
        why = f"{name} answered with what cannot be checked ({type(error).__name__}: {masked(str(error))})"[:500]
    else:
        if problem is None:
            return envelope
        where = ".".join(str(p) for p in problem.absolute_path) or "the result"
        why = f"The result of {name} is not what the tool promises: {where}: {masked(problem.message)[:300]}"
    return Failure[Any](
        ErrorCode.invalid_result,
        why,
        "The tool ran to its end, and the fault is its own: use its answer with care, or choose another way.",
        effects="unknown",
        result=envelope.get("result"),
    ).to_dict()
