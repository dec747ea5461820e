"""A run in the format of mini-swe-agent's trajectories, version mini-swe-agent-1.1: what it has a place for, and nothing made up.

The log keeps no system prompt, so the messages begin with the task. What that agent's format has no place for (tools other than its
bash, delegated runs) is in the calls of their own names, in ``extra`` and in ``info``.
"""

from __future__ import annotations

import json
import signal
from typing import Any

from agent.placing import time_of
from sandbox.envelope import jsonable

from .recorded import Recorded, RecordedStep
from .wording import answer_text, exit_code, summary

FORMAT = "mini-swe-agent-1.1"
# Its names for the ends that it knows.
_ENDS = {
    "finished": "Submitted",
    "max_iterations": "LimitsExceeded",
    "max_cost": "LimitsExceeded",
    "max_tokens": "LimitsExceeded",
    "max_seconds": "TimeExceeded",
    "no_valid_action": "RepeatedFormatError",
}
# Its template (config/mini.yaml) shows this many characters; of more the first and the last half.
_SHOWN_CHARS = 10_000


def mini(run: Recorded, version: str) -> dict[str, Any]:
    """The trajectory as JSON-ready data; delegated runs are under ``info.subagents``. One that has not ended has no message
    ``exit``, as theirs.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": run.task}]
    for step in run.steps:
        messages += _messages(step)
    if run.status not in (None, "paused"):
        messages.append(_exit(run))
    last = messages[-1].get("extra", {})
    info: dict[str, Any] = {
        "model_stats": {"instance_cost": run.usage.cost_usd, "api_calls": run.usage.calls},
        "config": {"agent": {}, "agent_type": f"gamebox.{run.agent or 'agent'}", "model": {"model_name": run.model}},
        "mini_version": f"gamebox {version}",
        "exit_status": last.get("exit_status", ""),
        "submission": last.get("submission", ""),
    }
    if run.usage.unpriced_calls:
        info["model_stats"]["unpriced_calls"] = run.usage.unpriced_calls
    if run.children:
        info["subagents"] = [mini(each, version) for each in run.children]
    return {"info": info, "messages": messages, "trajectory_format": FORMAT}


def _exit(run: Recorded) -> dict[str, Any]:
    status = _ENDS.get(run.status or "", run.status or "")
    handed_in = summary(run.result) if status == "Submitted" else ""
    extra = {"exit_status": status, "submission": handed_in, **({"reason": run.reason} if run.reason else {})}
    return {"role": "exit", "content": handed_in if status == "Submitted" else status, "extra": extra}


def _messages(step: RecordedStep) -> list[dict[str, Any]]:
    """The decision and its answer. A reply without an action is there only as what it was answered with, as theirs are."""
    if step.tool is None:
        return [_format_error(step)]
    call = f"call_{step.number}"
    arguments = json.dumps(jsonable(step.args), ensure_ascii=False)
    command = step.argument("command") if step.tool == "run" else ""
    function = {"name": "bash" if command else step.tool, "arguments": arguments}
    extra: dict[str, Any] = {"actions": [{"command": command, "tool_call_id": call}] if command else [], **_spent(step)}
    decision = {
        "role": "assistant", "content": step.thought, "extra": extra,
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }  # fmt: skip
    return [decision] if step.envelope is None else [decision, _answer(step, call, of_command=bool(command))]


def _answer(step: RecordedStep, call: str, *, of_command: bool) -> dict[str, Any]:
    envelope = step.envelope or {}
    printed = step.result.get("output")
    output = printed if of_command and isinstance(printed, str) else ("" if of_command else answer_text(step))
    code = _returncode(step)
    failed = "" if step.executed else str(envelope.get("error", ""))
    extra = {"raw_output": output, "returncode": code, "exception_info": failed, **_timed(str(envelope.get("timestamp", "")))}
    if not step.executed:
        extra["exception_type"] = str(envelope.get("code", ""))
    shown: dict[str, Any] = {"returncode": code}
    if len(output) < _SHOWN_CHARS:
        shown["output"] = output
    else:
        half = _SHOWN_CHARS // 2
        shown |= {"output_head": output[:half], "output_tail": output[-half:], "elided_chars": len(output) - _SHOWN_CHARS}
        shown["warning"] = "Output too long."
    if failed:
        shown["exception_info"] = failed
    content = json.dumps(shown, ensure_ascii=False, indent=2) if of_command else answer_text(step)
    return {"role": "tool", "tool_call_id": call, "content": content, "extra": extra}


def _returncode(step: RecordedStep) -> int:
    """As Python's subprocess has it: of what a signal ended its number, negative; -1 for what was not carried out."""
    code, name = exit_code(step), step.result.get("signal")
    if not step.executed:
        return -1
    if isinstance(name, str):
        found = signal.Signals.__members__.get(name)
        return -1 if found is None else -found
    return 0 if code is None else code


def _format_error(step: RecordedStep) -> dict[str, Any]:
    told = "" if step.envelope is None else answer_text(step)
    return {"role": "user", "content": told, "extra": {"interrupt_type": "FormatError", "response": step.thought, **_spent(step)}}


def _spent(step: RecordedStep) -> dict[str, Any]:
    return {**({} if step.usage is None else {"cost": step.usage.cost_usd}), **_timed(step.at)}


def _timed(text: str) -> dict[str, float]:
    at = time_of(text)
    return {} if at is None else {"timestamp": at}
