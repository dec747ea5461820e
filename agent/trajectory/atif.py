"""A run as an ATIF trajectory, the format of Harbor and of what reads its jobs (its RFC 0001, version 1.7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent.budget import Usage
from sandbox.envelope import jsonable

from .recorded import Recorded, RecordedStep, parts_of
from .wording import answer_text

VERSION = "ATIF-v1.7"


def atif(run: Recorded, version: str) -> dict[str, Any]:
    """The trajectory as JSON-ready data; ``version`` is that of the program. Delegated runs are embedded in it."""
    children = [(each, f"{run.run or 'run'}/{number}") for number, each in enumerate(run.children, 1)]
    idents = {id(each): ident for each, ident in children}
    begun = {number: [idents[id(each)] for each in parts] for number, parts in parts_of(run).items()}
    steps = [_task(run), *(_step(step, begun.get(step.number, [])) for step in run.steps)]
    final = {
        **_tokens(run.usage),
        "total_steps": len(steps),
        "extra": _present(
            {"status": run.status, "reason": run.reason, "seconds": run.seconds, "result": jsonable(run.result)}
        ),
    }
    embedded = [{**atif(each, version), "trajectory_id": ident} for each, ident in children]
    return _present({
        "schema_version": VERSION,
        "session_id": run.run or None,
        "agent": _present({"name": run.agent or "gamebox", "version": version, "model_name": run.model or None}),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": final,
        "subagent_trajectories": embedded or None,
    })  # fmt: skip


def _task(run: Recorded) -> dict[str, Any]:
    return _present({"source": "user", "message": run.task, "timestamp": _time(run.began)})


def _step(step: RecordedStep, begun: list[str]) -> dict[str, Any]:
    call = f"call_{step.number}"
    data: dict[str, Any] = {"timestamp": _time(step.at), "source": "agent", "message": step.thought}
    if step.tool is not None:
        arguments = dict(step.args) if isinstance(step.args, Mapping) else {"arguments": step.args}
        data["tool_calls"] = [
            {"tool_call_id": call, "function_name": step.tool or "unnamed", "arguments": jsonable(arguments)}
        ]
    if step.envelope is not None:
        data["observation"] = {
            "results": [
                _present({
                    "source_call_id": call if step.tool is not None else None,
                    "content": answer_text(step),
                    "subagent_trajectory_ref": [{"trajectory_id": ident} for ident in begun] or None,
                    "extra": {"envelope": jsonable(step.envelope)},
                })
            ]
        }  # fmt: skip
    if step.usage is not None:
        data["llm_call_count"] = step.usage.calls
        data["metrics"] = _metrics(step.usage) if step.usage.calls else None
    data["extra"] = {"seconds": step.seconds}
    return _present(data)


def _metrics(usage: Usage) -> dict[str, Any]:
    cost = None if usage.unpriced_calls else usage.cost_usd
    return _present({"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens, "cost_usd": cost})


def _tokens(usage: Usage) -> dict[str, Any]:
    return _present({
        "total_prompt_tokens": usage.input_tokens,
        "total_completion_tokens": usage.output_tokens,
        "total_cost_usd": None if usage.unpriced_calls else usage.cost_usd,
    })  # fmt: skip


def _time(text: str) -> str | None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def _present(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}
