"""What a request becomes on its way to a guest: its arguments, how long the answer may take, how long it may be."""

from __future__ import annotations

import math
from typing import Any

from sandbox import operations as op
from sandbox.errors import ErrorCode
from sandbox.limits import Limits
from sandbox.text.wording import value_text

from .replies import worded
from .stdin import INLINE_BYTES
from .transport import MAX_REPLY_BYTES

# How long an operation without a deadline of its own may stay silent. Files move at hundreds of MiB a second here.
FILE_SECONDS = 30.0


def prepared(request: op.Request, limits: Limits) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments for the guest and for ``Transport.request``. Raises OperationError for what the limits do not allow."""
    if isinstance(request, op.Run):
        return _prepared_run(request, limits)
    if isinstance(request, op.Logs | op.WaitFor) and (wrong := request.problem()):
        raise worded(ErrorCode.invalid_arguments, {"problem": wrong}, request.operation)
    args = request.model_dump(mode="json", exclude={"request_id"})
    if isinstance(request, op.WaitFor):
        args["host"] = request.address()
    if isinstance(request, op.Write | op.Edit):
        text = request.content if isinstance(request, op.Write) else request.new_text
        measured = len(text.encode("utf-8", "surrogatepass"))
        if measured > limits.write_bytes:
            fields = {"path": request.path, "size_bytes": measured, "limit": limits.write_bytes}
            raise worded(ErrorCode.file_too_large, fields, request.operation)
    seconds = request.timeout_seconds + 3 if isinstance(request, op.Browse) else FILE_SECONDS
    seconds += _patience(request)
    return args, {"timeout_seconds": seconds, "max_reply_bytes": MAX_REPLY_BYTES + limits.read_bytes}


def _prepared_run(request: op.Run, limits: Limits) -> tuple[dict[str, Any], dict[str, Any]]:
    if wrong := request.problem():
        raise worded(ErrorCode.invalid_arguments, {"problem": wrong}, "run")
    timeout = request.timeout_seconds
    if timeout is None and not request.background:
        timeout = limits.timeout_seconds
    if timeout == math.inf:
        if limits.lifetime_seconds is None:
            problem = 'timeout_seconds="unlimited" needs a sandbox that ends by itself: set Limits(lifetime_seconds=...)'
            raise worded(ErrorCode.invalid_arguments, {"problem": problem}, "run")
        timeout = None
    elif timeout is not None and timeout > limits.max_timeout_seconds:
        most = limits.max_timeout_seconds
        raise worded(
            ErrorCode.invalid_arguments, {"problem": f"timeout_seconds is {timeout:g}, at most {most:g}"}, "run"
        )
    keep = limits.keep_output_bytes if request.keep_output_bytes is None else request.keep_output_bytes
    stdin = request.stdin.encode("utf-8", "surrogateescape") if isinstance(request.stdin, str) else request.stdin or b""
    if keep > limits.spill_bytes:
        problem = f"keep_output_bytes is {value_text(keep)}, at most {limits.spill_bytes}"
        raise worded(ErrorCode.invalid_arguments, {"problem": problem}, "run")
    args = request.model_dump(mode="json", exclude={"stdin", "request_id", "secrets"})
    args.update(timeout_seconds=timeout, keep_output_bytes=keep, cpu_seconds=_cpu_seconds(request.cpu_seconds, limits))
    args["stays_open"] = request.wait_seconds is not None and request.stdin is None
    waits = FILE_SECONDS + (request.wait_seconds or 0) if request.background else timeout
    call: dict[str, Any] = {
        "timeout_seconds": math.inf if waits is None else waits,
        "max_reply_bytes": MAX_REPLY_BYTES + keep,
    }
    if len(stdin) > INLINE_BYTES:
        feed_from(stdin, request, args, call)
    elif stdin:
        call.update(blob=stdin, blob_is_stdin=True)
    return args, call


def feed_from(source: Any, request: op.Request, args: dict[str, Any], call: dict[str, Any]) -> None:
    """Have the command read ``source``, if there is one, as it is streamed.

    Raises OperationError where the caller does not wait for the command's end.
    """
    if source is None or not isinstance(request, op.Run):
        return
    if request.background or request.wait_seconds is not None:
        problem = (
            f"with background or wait_seconds, stdin can be text or bytes, at most {INLINE_BYTES} bytes: put more into a "
            "file of the sandbox and redirect it (COMMAND < FILE)"
        )
        raise worded(ErrorCode.invalid_arguments, {"problem": problem}, "run")
    args["stays_open"] = False
    call["feed"] = source


def _cpu_seconds(asked: float | None, limits: Limits) -> float | None:
    most = limits.cpu_seconds_per_command
    if asked is not None and most is not None and asked > most:
        problem = f"cpu_seconds is {asked:g}, at most {most:g}"
        raise worded(ErrorCode.invalid_arguments, {"problem": problem}, "run")
    return most if asked is None else asked


def _patience(request: op.Request) -> float:
    """How long the guest may wait, as it was asked to, before it answers."""
    if isinstance(request, op.Send):
        return request.wait_seconds
    if isinstance(request, op.WaitFor):
        return request.timeout_seconds
    return request.wait_seconds if isinstance(request, op.Logs) and request.follow else 0
