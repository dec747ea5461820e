"""What is shown of a step, whatever shows it: the terminal, ``runs show``, ``--follow``, the page and the exports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent.record import events as ev
from agent.record.answers import with_mark, worded
from agent.record.call_summary import summary_of_call
from agent.record.store import CallRecord, StepRecord
from sandbox.frozen import dataclass
from sandbox.text.plain_text import plain

from .usage_text import spent

_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@", re.MULTILINE)
_DIFF_LINE = re.compile(
    r"[ +\-@\\]|$|diff --git |index |(?:new|deleted) file|(?:old|new) mode|similarity |rename |GIT binary|\(a binary file\)"
)


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call and its answer. ``tool`` is None if no action could be read from the reply.

    ``answer`` is without the diff that the call made, which is ``diff``; ``missing`` are the changes that the diff does not have.
    ``unanswered`` says why there is no answer.
    """

    tool: str | None = None
    summary: str = ""
    answer: str = ""
    failed: bool = False
    diff: str = ""
    missing: tuple[str, ...] = ()
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step: its number, with the name of a subrun's agent before it, the thought, what it used, and its calls."""

    mark: str
    thought: str = ""
    spent: str = ""
    calls: tuple[CallView, ...] = ()


def view_of_step(step: StepRecord, prefix: str = "") -> StepView:
    """Return the view of a recorded step."""
    calls = tuple(map(view_of_call, step.calls))
    return StepView(
        f"{prefix}{step.number}", step.thought, spent(step.usage, step.seconds) if step.ended else "", calls
    )


def view_of_call(call: CallRecord) -> CallView:
    """Return the view of a recorded call."""
    summary = "" if call.tool is None else summary_of_call(call.tool, call.args, call.call)
    if call.envelope is not None:
        return view_of_answer(call.tool, summary, answer_text(call), call.envelope, call.changed)
    diff, missing = _recorded_diff(call.changed)
    return CallView(call.tool, summary, diff=diff, missing=missing, unanswered=_why_unanswered(call))


def view_of_answer(
    tool: str | None, summary: str, text: str, envelope: Mapping[str, Any], changed: ev.FilesChanged | None = None
) -> CallView:
    """Return the view of a call with its answer as ``text``. The diff is the recorded one, or else the one in the answer."""
    rest, own_diff = split_diff(text, envelope)
    diff, missing = _recorded_diff(changed)
    diff = diff or own_diff
    failed = envelope.get("tool_executed") is not True
    return CallView(tool, summary, with_mark(rest, envelope) if rest or not diff else "", failed, diff, missing)


def split_diff(text: str, envelope: Mapping[str, Any]) -> tuple[str, str]:
    """Return an answer without the diff of an edit, and that diff. A diff that a command printed stays in the answer."""
    result = envelope.get("result")
    own = result.get("diff") if isinstance(result, Mapping) else None
    if not isinstance(own, str) or not own.strip() or not has_diff(text):
        return text, ""
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if not _DIFF_LINE.match(line)), len(lines))
    return "\n".join(lines[end:]).strip("\n"), "\n".join(lines[:end]).rstrip("\n")


def has_diff(text: str) -> bool:
    """Return whether a text contains a diff."""
    return bool(_HUNK.search(text))


def answer_text(call: CallRecord) -> str:
    """Return the answer in the words that a model is shown, without escape sequences."""
    if call.envelope is None:
        return "(the run was cut off before it was answered)"
    return plain(call.shown if call.shown is not None else worded(call.tool, call.envelope))


def readable_diff(patch: str) -> str:
    """Return a diff in git's form without the hashes of contents; of a binary file it says only that it is one."""
    lines, binary, in_hunk = [], False, False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            binary = in_hunk = False
        in_hunk = in_hunk or line.startswith("@@ ")
        if line == "GIT binary patch" and not in_hunk:
            binary = True
            lines.append("(a binary file)")
        elif not binary and (in_hunk or not line.startswith("index ")):
            lines.append(line)
    return "\n".join(lines)


def exit_code(call: CallRecord) -> int | None:
    """Return the exit code of a command; None if it is not one, or a signal ended it."""
    code = call.result.get("exit_code")
    return code if isinstance(code, int) else None


def result_text(result: object) -> str:
    """Return the result of a run as text."""
    if isinstance(result, Mapping) and isinstance(result.get("summary"), str):
        return str(result["summary"])
    return "" if result is None else str(result)


def _recorded_diff(changed: ev.FilesChanged | None) -> tuple[str, tuple[str, ...]]:
    """Return the recorded change of the files, and what it lacks."""
    return ("", ()) if changed is None else (readable_diff(changed.patch.rstrip("\n")), changed.left_out)


def _why_unanswered(call: CallRecord) -> str:
    if call.started is not None:
        return "it was begun, but not answered"
    return "it was not carried out"
