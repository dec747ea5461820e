"""The result of a task, and the folder that holds it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agent.core.run import AgentRun
from sandbox.frozen import dataclass


class State(StrEnum):
    """How much is known about a task's outcome. A missing reward is not a zero."""

    value = "value"  # there are rewards
    not_verified = "not_verified"  # the task has nothing that could give one
    verifier_failed = "verifier_failed"  # the verifier gave none that can be used
    infra_error = (
        "infra_error"  # the sandbox, the engine or the model failed; it is tried again when the batch is run again
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a task. ``status`` is that of the agent's run, "" if none began; ``error`` says what went wrong.

    ``identity`` says what it is a result of (see ``setup``); ``run`` is the id of the agent's run in the event log.
    ``touched`` are files that the agent changed and that the verdict may depend on.
    """

    id: str
    state: State
    rewards: dict[str, float] = field(default_factory=dict)
    status: str = ""
    reason: str = ""
    error: str = ""
    steps: int = 0
    seconds: float = 0.0
    calls: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    run: str = ""
    touched: tuple[str, ...] = ()
    identity: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Return whether the task need not run again."""
        return self.state is not State.infra_error

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {**asdict(self), "state": self.state.value}


def of_run(run: AgentRun) -> dict[str, Any]:
    """Return the fields of a result that an agent's run fills."""
    usage = run.usage
    return {
        "status": run.status.value,
        "reason": run.reason,
        "steps": run.iterations,
        "calls": usage.calls,
        "tokens": usage.total_tokens,
        "cost_usd": None if usage.unpriced_calls else usage.cost_usd,
    }


class TaskFolder:
    """The folder of a task's results. It is filled beside its final place and moved there whole, so it is never
    incomplete.
    """

    def __init__(self, out: Path, ident: str) -> None:
        self.place = out / ident
        self.path = out / f".{ident}.part"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder."""
        (self.path / name).write_text(text, encoding="utf-8", errors="surrogateescape")

    def finish(self, result: Result) -> None:
        """Add the result, and move the folder into place, where it replaces an earlier one."""
        self.write("result.json", json.dumps(result.to_dict(), indent=1) + "\n")
        old = self.place.with_name(f".{self.place.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.place.exists():
            self.place.replace(old)
        self.path.replace(self.place)
        shutil.rmtree(old, ignore_errors=True)

    def drop(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.path, ignore_errors=True)
