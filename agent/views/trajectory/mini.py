"""A run in the format of mini-swe-agent's trajectories, version mini-swe-agent-1.1.

The log has no system prompt, so the messages begin with the task. Calls of tools other than bash have their own names. Subruns, and
whatever else the format has no place for, are in ``extra`` and ``info``.
"""

from __future__ import annotations

import json
import signal
from typing import Any

from agent.record.store import CallRecord, RunRecord, StepRecord
from agent.record.subruns import time_of
from agent.views.step_view import answer_text, exit_code, result_text
from sandbox.envelope import jsonable

FORMAT = "mini-swe-agent-1.1"
# Its names for the ends that it has.
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


def mini(run: RunRecord, version: str) -> dict[str, Any]:
    """Return the trajectory as JSON-ready data, with subruns under ``info.subagents``. Only an ended run has a message ``exit``."""
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
    if run.subruns:
        info["subagents"] = [mini(each, version) for each in run.subruns]
    return {"info": info, "messages": messages, "trajectory_format": FORMAT}


def _exit(run: RunRecord) -> dict[str, Any]:
    status = _ENDS.get(run.status or "", run.status or "")
    handed_in = result_text(run.result) if status == "Submitted" else ""
    extra = {"exit_status": status, "submission": handed_in, **({"reason": run.reason} if run.reason else {})}
    return {"role": "exit", "content": handed_in if status == "Submitted" else status, "extra": extra}


def _messages(step: StepRecord) -> list[dict[str, Any]]:
    """The decision and its answers. Of a reply without an action there is only the answer, as in their format."""
    if step.tool is None:
        return [_format_error(step)]
    numbered = [
        (f"call_{step.number}" if n == 0 else f"call_{step.number}_{n}", call) for n, call in enumerate(step.calls)
    ]
    actions = [{"command": _command(call), "tool_call_id": ident} for ident, call in numbered if _command(call)]
    decision = {
        "role": "assistant",
        "content": step.thought,
        "extra": {"actions": actions, **_spent(step)},
        "tool_calls": [_function(ident, call) for ident, call in numbered],
    }
    return [decision, *(_answer(ident, call) for ident, call in numbered if call.envelope is not None)]


def _command(call: CallRecord) -> str:
    return call.argument("command") if call.tool == "run" else ""


def _function(ident: str, call: CallRecord) -> dict[str, Any]:
    arguments = json.dumps(jsonable(call.args), ensure_ascii=False)
    function = {"name": "bash" if _command(call) else call.tool, "arguments": arguments}
    return {"id": ident, "type": "function", "function": function}


def _answer(ident: str, call: CallRecord) -> dict[str, Any]:
    envelope, of_command = call.envelope or {}, bool(_command(call))
    printed = call.result.get("output")
    output = printed if of_command and isinstance(printed, str) else ("" if of_command else answer_text(call))
    code = _returncode(call)
    failed = "" if call.succeeded else str(envelope.get("error", ""))
    extra = {
        "raw_output": output,
        "returncode": code,
        "exception_info": failed,
        **_timed(str(envelope.get("timestamp", ""))),
    }
    if not call.succeeded:
        extra["exception_type"] = str(envelope.get("code", ""))
    content = _shown(output, code, failed) if of_command else answer_text(call)
    return {"role": "tool", "tool_call_id": ident, "content": content, "extra": extra}


def _shown(output: str, code: int, failed: str) -> str:
    """The output of a command as their template shows it to the model."""
    shown: dict[str, Any] = {"returncode": code}
    if len(output) < _SHOWN_CHARS:
        shown["output"] = output
    else:
        half = _SHOWN_CHARS // 2
        shown |= {
            "output_head": output[:half],
            "output_tail": output[-half:],
            "elided_chars": len(output) - _SHOWN_CHARS,
        }
        shown["warning"] = "Output too long."
    if failed:
        shown["exception_info"] = failed
    return json.dumps(shown, ensure_ascii=False, indent=2)


def _returncode(call: CallRecord) -> int:
    """As Python's subprocess has it: the negative number of the signal that ended it; -1 if it was not carried out."""
    code, name = exit_code(call), call.result.get("signal")
    if not call.succeeded:
        return -1
    if isinstance(name, str):
        found = signal.Signals.__members__.get(name)
        return -1 if found is None else -found
    return 0 if code is None else code


def _format_error(step: StepRecord) -> dict[str, Any]:
    text = "" if step.envelope is None else answer_text(step)
    return {
        "role": "user",
        "content": text,
        "extra": {"interrupt_type": "FormatError", "response": step.thought, **_spent(step)},
    }


def _spent(step: StepRecord) -> dict[str, Any]:
    return {**({"cost": step.usage.cost_usd} if step.usage_known else {}), **_timed(step.at)}


def _timed(text: str) -> dict[str, float]:
    at = time_of(text)
    return {} if at is None else {"timestamp": at}
