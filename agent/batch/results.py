"""What came of a task, and the folder it is kept in."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agent.run import AgentRun


class State(StrEnum):
    """How much is known of a task's outcome. A missing reward is not a zero."""

    value = "value"  # there are rewards
    not_verified = "not_verified"  # the task has nothing that could give one
    verifier_failed = "verifier_failed"  # the verifier gave none that can be used
    infra_error = (
        "infra_error"  # the sandbox, the engine or the model failed; it is tried again when the batch is run again
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a task. ``status`` is that of the agent's run, "" where none was begun; ``error`` says what went wrong.

    ``identity`` tells what it is a result of (see ``setup``); ``run`` is the id of the agent's run in the event log. ``touched``
    are files that the agent changed though the verdict may rest on them.
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
        """Whether it need not be tried again."""
        return self.state is not State.infra_error

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready data."""
        return {**asdict(self), "state": self.state.value}


def of_run(run: AgentRun) -> dict[str, Any]:
    """The fields of a result that an agent's run fills."""
    usage = run.usage
    return {
        "status": run.status.value, "reason": run.reason, "steps": run.iterations, "calls": usage.calls,
        "tokens": usage.total_tokens, "cost_usd": None if usage.unpriced_calls else usage.cost_usd,
    }  # fmt: skip


class TaskFolder:
    """The folder of a task's results. It is filled beside its place and put there whole, so that there is all of it or nothing."""

    def __init__(self, out: Path, ident: str) -> None:
        self.place = out / ident
        self.path = out / f".{ident}.part"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        """Write one of its files."""
        (self.path / name).write_text(text, encoding="utf-8", errors="surrogateescape")

    def finish(self, result: Result) -> None:
        """Add the result, and put the folder into its place; an earlier one goes."""
        self.write("result.json", json.dumps(result.to_dict(), indent=1) + "\n")
        old = self.place.with_name(f".{self.place.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.place.exists():
            self.place.replace(old)
        self.path.replace(self.place)
        shutil.rmtree(old, ignore_errors=True)

    def drop(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
