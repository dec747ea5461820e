"""A recorded run: what exports, replays and comparisons work on, wherever it was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from agent.budget import Usage
from agent.hooks import step_text
from agent.placing import placed
from sandbox.envelope import jsonable

FORMAT = "gamebox-run-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step. ``at`` is ISO 8601 or ""; ``tool`` is None where no action could be read; ``envelope`` is None where the step
    was cut off; ``usage`` is None where it is not known for the step alone. ``carried`` are the arguments that were carried out,
    where they are not those of the decision: somebody changed them before they approved. ``changes`` is a diff of what the step has
    made of the files, where that was recorded; ``shown`` the answer in the action's own words, where it has any.
    """

    number: int
    at: str = ""
    thought: str = ""
    tool: str | None = None
    args: Any = None
    envelope: Mapping[str, Any] | None = None
    usage: Usage | None = None
    seconds: float = 0.0
    carried: Any = None
    changes: str = ""
    shown: str | None = None

    def __repr__(self) -> str:
        return step_text("RecordedStep", self.number, self.tool, self.envelope, self.seconds)

    @property
    def executed(self) -> bool:
        """Whether the action was carried out."""
        return self.envelope is not None and self.envelope.get("tool_executed") is True

    @property
    def result(self) -> Mapping[str, Any]:
        """The result as far as it has fields; {} where it has none."""
        result = self.envelope.get("result") if self.envelope is not None else None
        return result if isinstance(result, Mapping) else {}

    def argument(self, name: str) -> str:
        """The argument as text; "" where there is none."""
        value = self.args.get(name) if isinstance(self.args, Mapping) else None
        return value if isinstance(value, str) else ""


class Recorded(Protocol):
    """What is known of a run. ``status`` is None while it goes on, or where it was cut off; ``children`` are those it
    delegated to.
    """

    @property
    def run(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def task(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def began(self) -> str: ...
    @property
    def status(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def result(self) -> Any: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def seconds(self) -> float: ...
    @property
    def steps(self) -> Sequence[RecordedStep]: ...
    @property
    def children(self) -> Sequence[Recorded]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run as a value; see ``Recorded``."""

    run: str
    task: str
    agent: str = ""
    model: str = ""
    parent: str | None = None
    began: str = ""
    status: str | None = None
    reason: str = ""
    result: Any = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    steps: tuple[RecordedStep, ...] = ()
    children: tuple[RecordedRun, ...] = ()

    def __repr__(self) -> str:
        return f"RecordedRun({self.run}, {self.status or 'not ended'}, {len(self.steps)} steps, {self.seconds:.1f} s)"

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON-ready data; ``reading.from_dict`` reads it."""
        data: dict[str, Any] = jsonable(asdict(self))
        return {"format": FORMAT, **data}


def money(run: Recorded) -> float | None:
    """What the run cost, in US dollars; None where a call had no price."""
    return None if run.usage.unpriced_calls else run.usage.cost_usd


def parts_of(run: Recorded) -> Mapping[int | None, Sequence[Recorded]]:
    """The parts of a run by the step that began them; under None those of which that is not known."""
    return placed(run.steps, run.children)
