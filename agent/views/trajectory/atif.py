"""A run as an ATIF trajectory, the format of Harbor and of what reads its jobs (its RFC 0001, version 1.7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent.core.budget import Usage
from agent.record.store import CallRecord, RunRecord, StepRecord
from agent.record.subruns import subruns_by_step
from agent.views.step_view import answer_text
from sandbox.envelope import jsonable

VERSION = "ATIF-v1.7"


def atif(run: RunRecord, version: str) -> dict[str, Any]:
    """Return the trajectory as JSON-ready data, with subruns embedded; ``version`` is that of Gamebox."""
    children = [(each, f"{run.run or 'run'}/{number}") for number, each in enumerate(run.subruns, 1)]
    idents = {id(each): ident for each, ident in children}
    begun = {number: [idents[id(each)] for each in parts] for number, parts in subruns_by_step(run).items()}
    steps = [_task(run), *(_step(step, begun.get(step.number, [])) for step in run.steps)]
    final = {
        **_tokens(run.usage),
        "total_steps": len(steps),
        "extra": _present(
            {"status": run.status, "reason": run.reason, "seconds": run.seconds, "result": jsonable(run.result)}
        ),
    }
    embedded = [{**atif(each, version), "trajectory_id": ident} for each, ident in children]
    return _present(
        {
            "schema_version": VERSION,
            "session_id": run.run or None,
            "agent": _present({"name": run.agent or "gamebox", "version": version, "model_name": run.model or None}),
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
            "final_metrics": final,
            "subagent_trajectories": embedded or None,
        }
    )


def _task(run: RunRecord) -> dict[str, Any]:
    return _present({"source": "user", "message": run.task, "timestamp": _time(run.began)})


def _step(step: StepRecord, begun: list[str]) -> dict[str, Any]:
    data: dict[str, Any] = {"timestamp": _time(step.at), "source": "agent", "message": step.thought}
    numbered = [(_call_id(step, index), call) for index, call in enumerate(step.calls)]
    data["tool_calls"] = [_call(ident, call) for ident, call in numbered if call.tool is not None] or None
    results = [_result(ident, call) for ident, call in numbered if call.envelope is not None]
    if results:
        results[0]["subagent_trajectory_ref"] = [{"trajectory_id": ident} for ident in begun] or None
        data["observation"] = {"results": [_present(result) for result in results]}
    if step.usage_known:
        data["llm_call_count"] = step.usage.calls
        data["metrics"] = _metrics(step.usage) if step.usage.calls else None
    data["extra"] = {"seconds": step.seconds}
    return _present(data)


def _call_id(step: StepRecord, index: int) -> str:
    return f"call_{step.number}" if index == 0 else f"call_{step.number}_{index}"


def _call(ident: str, call: CallRecord) -> dict[str, Any]:
    arguments = dict(call.args) if isinstance(call.args, Mapping) else {"arguments": call.args}
    return {"tool_call_id": ident, "function_name": call.tool or "unnamed", "arguments": jsonable(arguments)}


def _result(ident: str, call: CallRecord) -> dict[str, Any]:
    return {
        "source_call_id": ident if call.tool is not None else None,
        "content": answer_text(call),
        "extra": {"envelope": jsonable(call.envelope)},
    }


def _metrics(usage: Usage) -> dict[str, Any]:
    cost = None if usage.unpriced_calls else usage.cost_usd
    return _present({"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "cost_usd": cost})


def _tokens(usage: Usage) -> dict[str, Any]:
    return _present(
        {
            "total_prompt_tokens": usage.input_tokens,
            "total_completion_tokens": usage.output_tokens,
            "total_cost_usd": None if usage.unpriced_calls else usage.cost_usd,
        }
    )


def _time(text: str) -> str | None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def _present(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}
