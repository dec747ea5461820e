"""What steps say, as text: for exports that a person or a model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.answers import worded
from sandbox.text.plain_text import plain

from .recorded import RecordedStep


def answer_text(step: RecordedStep) -> str:
    """The envelope of a step in the words that a model is shown, without escape sequences."""
    if step.envelope is None:
        return "(the run was cut off before it was answered)"
    return answer_of(step.tool, step.envelope, step.shown)


def answer_of(tool: str | None, envelope: Mapping[str, Any], shown: str | None) -> str:
    """The same of any envelope; ``shown`` are the action's own words, where it has any."""
    return plain(shown if isinstance(shown, str) else worded(tool, envelope))


def readable_diff(patch: str) -> str:
    """A diff in git's form as a person reads it: without the hashes of contents, and of a binary file only that it is one."""
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


def exit_code(step: RecordedStep) -> int | None:
    """The exit code of a command; None for what is none, or was ended by a signal."""
    code = step.result.get("exit_code")
    return code if isinstance(code, int) else None


def summary(result: object) -> str:
    """What a run handed in, as text."""
    if isinstance(result, Mapping) and isinstance(result.get("summary"), str):
        return str(result["summary"])
    return "" if result is None else str(result)
