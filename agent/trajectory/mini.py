"""A run in the format of mini-swe-agent's trajectories, version mini-swe-agent-1.1."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

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


def mini(run: Recorded, version: str) -> dict[str, Any]:
    """The trajectory as JSON-ready data. Delegated runs are under ``info.subagents``, which that format does not know of."""
    handed_in = summary(run.result)
    status = _ENDS.get(run.status or "", run.status or "")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You are {run.agent or 'an agent'}."},
        {"role": "user", "content": run.task},
    ]
    for step in run.steps:
        messages += _messages(step)
    messages.append({"role": "exit", "content": handed_in, "extra": {"exit_status": status, "submission": handed_in}})
    cost = 0.0 if run.usage.unpriced_calls else run.usage.cost_usd
    info: dict[str, Any] = {
        "model_stats": {"instance_cost": cost, "api_calls": run.usage.calls},
        "config": {
            "agent": {"step_limit": 0, "cost_limit": 0.0},
            "agent_type": f"gamebox.{run.agent or 'agent'}",
            "model": {"model_name": run.model},
        },
        "mini_version": f"gamebox {version}",
        "exit_status": status,
        "submission": handed_in,
    }
    if run.children:
        info["subagents"] = [mini(each, version) for each in run.children]
    return {"info": info, "messages": messages, "trajectory_format": FORMAT}


def _messages(step: RecordedStep) -> list[dict[str, Any]]:
    """The decision, then its answer; a command as mini-swe-agent has it, any other tool as a call of that name."""
    time = _timestamp(step.at)
    extra: dict[str, Any] = {"timestamp": time, "actions": []}
    decision: dict[str, Any] = {"role": "assistant", "content": step.thought, "extra": extra}
    if step.usage is not None:
        extra["cost"] = 0.0 if step.usage.unpriced_calls else step.usage.cost_usd
    answer: dict[str, Any] = {"role": "user"}
    if step.tool is not None:
        call = f"call_{step.number}"
        bash = step.tool == "run" and step.argument("command")
        arguments = json.dumps(jsonable(step.args), ensure_ascii=False)
        function = {"name": "bash" if bash else step.tool, "arguments": arguments}
        decision["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        extra["actions"] = [
            {"command": step.argument("command") if bash else f"{step.tool} {arguments}", "tool_call_id": call}
        ]
        answer = {"role": "tool", "tool_call_id": call}
    if step.envelope is None:
        return [decision]
    output, code = answer_text(step), exit_code(step)
    answer["content"] = f"<returncode>{'' if code is None else code}</returncode>\n<output>\n{output}\n</output>"
    answer["extra"] = {
        "returncode": code if code is not None else -1,
        "raw_output": output,
        "timestamp": time,
        "exception_info": "",
    }
    if step.tool is not None and not step.executed:
        answer["extra"]["exception_info"] = str(step.envelope.get("error", ""))
    return [decision, answer]


def _timestamp(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
