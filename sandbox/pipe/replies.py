"""What a guest answered, checked and worded: its bytes are hostile until they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sandbox import operations as op
from sandbox.envelope import Notice
from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.messages.faults import word_fault, word_notice
from sandbox.text.command_output import decode_part, join_segments


def result_of(request: op.Request, fields: Mapping[str, Any], blob: bytes) -> op.Result | None:
    """The typed result in a reply, or None. Raises SandboxUnavailableError for what no guest of ours would send."""
    known = fields.get("result")
    if known is None:
        return None
    try:
        known = dict(known)
        if isinstance(request, op.Run):
            if "segments" in fields:
                where = known.get("spill_path") if not known.get("spill_truncated") else None
                shown = join_segments(
                    fields["segments"],
                    blob,
                    int(known["output_bytes"]),
                    bool(known["truncated"]),
                    where or None,
                )
                known.update(asdict(shown))
        elif isinstance(request, op.Logs):
            starts, ends = known["offset"] == 0, known["next_offset"] == known["total_bytes"]
            known["content"], known["encoding_errors"] = decode_part(blob, starts=starts, ends=ends)
            known["content_bytes"] = blob
        elif isinstance(request, op.Send):
            known["output"] = blob.decode("utf-8", "replace")
        elif isinstance(request, op.WaitFor):
            known["last_output"] = blob.decode("utf-8", "replace")
        elif isinstance(request, op.Read) and "content" not in known:
            known["content"] = blob.decode("utf-8", "replace")
        return type(request).result.model_validate(known)
    except (TypeError, ValueError, KeyError, OverflowError) as error:  # ValidationError is a ValueError
        raise violation(request.operation) from error


def fault_of(fault: Any, operation: str) -> OperationError:
    """The fault in a reply, worded. Raises SandboxUnavailableError for what no guest of ours would send."""
    try:
        code = ErrorCode(fault["code"])
        effects = fault["effects"]
        fields = dict(fault["fields"])
    except (TypeError, ValueError, KeyError) as problem:
        raise violation(operation) from problem
    error = worded(code, fields, operation)
    if effects not in ("none", "partial", "unknown"):
        raise violation(operation)
    error.effects = effects
    error.retryable = error.retryable and effects == "none"
    return error


def worded(code: ErrorCode, fields: Mapping[str, Any], operation: str) -> OperationError:
    """The error for a fault with these values, in the words of ``hints``."""
    wording = word_fault(code, fields, operation)
    return OperationError(code, wording.message, wording.hint, next_tool=wording.next_tool, retryable=wording.retryable)


# What bash and dash print of a command's own text; the name before it is theirs.
_SYNTAX_ERROR = re.compile(
    r"^\S*sh: (?:eval: line (\d{1,9}): (?:syntax error|unexpected EOF while)|(\d{1,9}): Syntax error: )", re.MULTILINE
)


def syntax_error_line(result: op.RunResult) -> int | None:
    """Return the line of the command that its shell could not parse, as far as it says so; None if it could."""
    found = _SYNTAX_ERROR.search(result.stderr) if result.exit_code in (1, 2) else None
    return None if found is None else int(found[1] or found[2])


def notices_of(listed: Any, known: Mapping[str, Any] | None = None) -> list[Notice]:
    """The notices in a reply, worded with what the host has ``known``; unknown ones are left out, and so is what is beyond 20."""
    notices = []
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and isinstance(item.get("code"), str):
            notice = word_notice(item["code"], {**item, **(known or {})})
            if notice is not None:
                notices.append(notice)
    return notices[:20]


def violation(operation: str) -> SandboxUnavailableError:
    """The error for an answer that is none."""
    return SandboxUnavailableError(
        "protocol_violation",
        f"The sandbox answered {operation} with something that is no answer.",
        "Start another sandbox.",
    )
